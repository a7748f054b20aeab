// What keeps a reader from using a page of ours, found in the page as it is shown. The value of this
// file is {overflow, contrast, controls}: each empty where nothing is wrong.
(() => {
  const shown = (node) => node.outerHTML.slice(0, 120);
  const numbers = (text) => text.match(/[\d.]+/g).map(Number);

  // Pixels by which the page scrolls sideways, and what reaches out of it; boxes that scroll by themselves aside.
  function overflow() {
    const beyond = (node) => {
      const box = node.getBoundingClientRect();
      return box.width && box.right > innerWidth + 1 && !node.closest(".cells");
    };
    const sideways = document.documentElement.scrollWidth - document.documentElement.clientWidth;
    const found = [...document.querySelectorAll("body *")].filter(beyond).map(shown);
    return sideways > 0 ? [sideways, ...found] : found;
  }

  function luminance(colour) {
    const linear = colour.slice(0, 3).map((part) => part / 255).map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  }

  function background(node) {
    for (let at = node; at; at = at.parentElement) {
      const colour = numbers(getComputedStyle(at).backgroundColor);
      if (colour.length < 4 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  }

  // Texts whose contrast with what lies behind them is under 4.5, or 3 for large ones, as WCAG 2 counts it.
  function contrast() {
    const scope = document.querySelector("dialog[open]") ?? document.body;
    const hasText = (node) => node.offsetParent && [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
    const faint = (node) => {
      const style = getComputedStyle(node);
      const [light, dark] = [luminance(numbers(style.color)), luminance(background(node))].sort((a, b) => b - a);
      return (light + 0.05) / (dark + 0.05) < (parseFloat(style.fontSize) >= 24 ? 3 : 4.5);
    };
    return [...scope.querySelectorAll("*")].filter((node) => hasText(node) && faint(node)).map(shown);
  }

  // Controls without a name, or too low to be hit.
  function controls() {
    const seen = [...document.querySelectorAll("button, select, input, summary, a")].filter((node) => node.offsetParent);
    const name = (node) => node.getAttribute("aria-label") ?? node.closest("label")?.innerText ?? node.innerText ?? "";
    return seen.filter((node) => !name(node).trim() || node.getBoundingClientRect().height < 18).map(shown);
  }

  return { overflow: overflow(), contrast: contrast(), controls: controls() };
})();

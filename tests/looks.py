"""What a reader must be able to do with any page of ours, as expressions for the browser."""

WIDTHS = (360, 1400)

# Elements that reach beyond the window to the right, those that scroll within a box of their own aside.
OVERFLOW = """[Math.max(0, document.documentElement.scrollWidth - document.documentElement.clientWidth),
  ...[...document.querySelectorAll('body *')].filter((node) => {
    const box = node.getBoundingClientRect();
    return box.width && box.right > innerWidth + 1 && !node.closest('.cells') && getComputedStyle(node).visibility === 'visible';
  }).map((node) => node.outerHTML.slice(0, 120)).slice(0, 3)]"""

# Texts whose contrast with what lies behind them is under 4.5 (3 for large ones), as WCAG 2 counts it.
CONTRAST = """(() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((part) => part / 255).map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, nth) => sum + part * [0.2126, 0.7152, 0.0722][nth], 0);
  const back = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length < 4 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const scope = document.querySelector('dialog[open]') ?? document.body;
  const texts = [...scope.querySelectorAll('*')].filter((node) => node.offsetParent && [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim()));
  return texts.map((node) => {
    const style = getComputedStyle(node);
    const [a, b] = [light(parse(style.color)), light(back(node))].sort((x, y) => y - x);
    return [(a + 0.05) / (b + 0.05), parseFloat(style.fontSize) >= 24 ? 3 : 4.5, node.outerHTML.slice(0, 120)];
  }).filter(([found, needed]) => found < needed);
})()"""

# Controls without a name, and those too small to touch.
CONTROLS = """(() => {
  const seen = [...document.querySelectorAll('button, select, input, summary, a')].filter((node) => node.offsetParent);
  const named = (node) => (node.getAttribute('aria-label') ?? node.closest('label')?.innerText ?? node.innerText ?? '').trim();
  return seen.filter((node) => !named(node) || node.getBoundingClientRect().height < 18).map((node) => node.outerHTML.slice(0, 120));
})()"""


def assert_fits(page):
    """No horizontal scroll of the page, readable contrast, named controls, a quiet console."""
    found = {name: page.run(check) for name, check in (("overflow", OVERFLOW), ("contrast", CONTRAST), ("controls", CONTROLS))}
    assert found == {"overflow": [0], "contrast": [], "controls": []}, found
    assert page.errors == [], page.errors

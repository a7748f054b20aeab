# The image of the docker backend: NeMo Gym at its pinned commit with the packages of the commit's
# own lock, our patches applied, and scripts/. Takes two to four minutes; `make image` gives the
# arguments their values (env.example) and checks the result. The legacy builder builds it as well
# as BuildKit does. What only a build may know (proxies, package indexes) is said to the first
# stage alone, which leaves no trace in the image's history.
ARG RELAX_IMAGE
ARG NEMO_GYM_COMMIT=a85670eb167ba9b48cc53a36a070eed815e6c40d

FROM ${RELAX_IMAGE} AS packages
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
WORKDIR /opt/nemo-gym
ARG NEMO_GYM_GIT
ARG NEMO_GYM_COMMIT
# The directories the graph needs, without history: 2 MB instead of the whole repository. The
# installation writes to cache/, and NeMo Gym expects results/.
RUN git init --quiet . && git remote add origin "$NEMO_GYM_GIT" \
    && git sparse-checkout set --cone nemo_gym resources_servers/workplace_assistant \
        responses_api_agents/simple_agent cache results \
    && git fetch --quiet --depth 1 --filter=blob:none origin "$NEMO_GYM_COMMIT" \
    && git -c advice.detachedHead=false checkout --quiet FETCH_HEAD \
    && test "$(git rev-parse HEAD)" = "$NEMO_GYM_COMMIT"
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_TRUSTED_HOST
ARG UV_DEFAULT_INDEX
ARG UV_INDEX
ARG UV_INDEX_URL
ARG UV_EXTRA_INDEX_URL
# One environment for all servers, with the base's own Python. The lock is exported, not synced:
# `uv sync` takes each file from where the lock's author got it, whatever the index here. Left out is
# what no server uses (and is large): packages, Ray's Java, a program of wandb's, the tests of pandas.
# Importing the servers and what Ray's processes load leaves the byte code of it, which a read-only root
# could not keep.
# hadolint shell=/bin/bash
RUN unset PYTHONPATH PYTHONDONTWRITEBYTECODE \
    && python3 -c 'import sys; sys.version_info >= (3, 12) or sys.exit("the base image has no Python 3.12")' \
    && python3 -m pip install --quiet --no-cache-dir --target /tmp/uv uv==0.13.9 \
    && export PATH="/tmp/uv/bin:$PATH" UV_NO_CACHE=1 UV_PYTHON_DOWNLOADS=never VIRTUAL_ENV=/opt/nemo-gym/.venv \
    && uv venv --quiet --python "$(command -v python3)" .venv \
    && uv export --quiet --frozen --no-dev --no-emit-project --output-file /tmp/lock.txt \
        --no-emit-package={datasets,pyarrow,hf-xet,mlflow,mlflow-skinny,mlflow-tracing,databricks-sdk} \
        --no-emit-package={scipy,scikit-learn,matplotlib,fonttools,kiwisolver,pillow} \
    && uv --directory /tmp pip install --quiet --no-deps --require-hashes --requirement lock.txt \
    && uv --directory /tmp pip install --quiet --no-deps --editable /opt/nemo-gym \
    && rm -rf .git /tmp/uv /tmp/lock.txt .venv/lib/python*/site-packages/{ray/jars,wandb/bin,pandas/tests} \
    && .venv/bin/python -c 'import nemo_gym.cli.env, resources_servers.workplace_assistant.app, responses_api_agents.simple_agent.app' \
    && .venv/bin/python -c 'from ray.dashboard import agent, utils; utils.get_all_modules(utils.DashboardAgentModule)' \
    && .venv/bin/python -c 'import ray.dashboard.dashboard, ray._private.runtime_env.agent.main' \
    && .venv/bin/python -c 'import ray.autoscaler._private.monitor, ray._private.log_monitor, ray.util.client.server'

FROM packages AS tree
COPY patches /opt/relax-nemo-gym/patches
COPY scripts/apply_patches.py /opt/relax-nemo-gym/scripts/
COPY scripts/common /opt/relax-nemo-gym/scripts/common
COPY scripts/servers/__init__.py scripts/servers/tree.py /opt/relax-nemo-gym/scripts/servers/
COPY env.example /opt/relax-nemo-gym/
RUN .venv/bin/python /opt/relax-nemo-gym/scripts/apply_patches.py --tree . \
    && .venv/bin/python -m compileall -q nemo_gym resources_servers responses_api_agents \
    && for server in resources_servers/workplace_assistant responses_api_agents/simple_agent; do \
        ln -s ../../.venv "$server/.venv"; done \
    && rm -rf .venv

FROM ${RELAX_IMAGE}
ARG NEMO_GYM_COMMIT
ENV NEMO_GYM_COMMIT=${NEMO_GYM_COMMIT}
STOPSIGNAL SIGINT
ENTRYPOINT []
CMD ["env", "PYTHONPATH=/opt/relax-nemo-gym/scripts", "/opt/nemo-gym/.venv/bin/python", "-m", "servers.supervise"]
WORKDIR /opt/relax-nemo-gym
COPY --from=packages /opt/nemo-gym/.venv /opt/nemo-gym/.venv
COPY --from=tree /opt/nemo-gym /opt/nemo-gym
# From here on seconds: what changes often.
COPY . .
ARG CODE=unknown
LABEL relax-nemo-gym.code="${CODE}"

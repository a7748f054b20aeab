# Every target is one script; `make` alone lists them. Variables of env.example can be given
# as `make data SPLIT=train`; they reach the script through the environment.
.DEFAULT_GOAL := help

##@ Help

.PHONY: help
help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  %-10s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

##@ Whole chain

.PHONY: smoke
smoke: ## Run the whole chain: set-up, graph, verifier, rollouts in a Ray job, acceptance, release of all state
	@scripts/run.sh smoke

.PHONY: doctor
doctor: ## Look for what would go wrong, and change nothing (STAGE=train: for one target)
	@scripts/run.sh doctor

.PHONY: stop
stop: ## Stop the jobs that this clone submitted, and all processes that it started
	@scripts/run.sh stop

##@ Stages

.PHONY: setup
setup: ## Make the virtual environment and patch NeMo Gym in it
	@scripts/setup.sh

.PHONY: data
data: ## Fetch, check and convert task rows (SPLIT=example, train or validation)
	@scripts/run.sh prepare_data

.PHONY: model
model: ## Fetch Qwen3-4B into MODEL_DIR and check that it is complete
	@scripts/run.sh fetch_model

.PHONY: image
image: ## Build the image of the docker backend on RELAX_IMAGE and check it from within
	@scripts/run.sh build_image

.PHONY: gym-up
gym-up: ## Start the graph (Gateway, agents, resource servers, head server) and wait until it is ready
	@scripts/run.sh gym_up

.PHONY: verify
verify: ## Check the verifier, then one whole trial, against the running graph
	@scripts/run.sh verify_verifier && scripts/run.sh verify_trial

.PHONY: relax
relax: ## Clone the trainer to RELAX_ROOT, where there is no checkout
	@scripts/run.sh fetch_relax

.PHONY: ray-up
ray-up: ## Start the trainer's container and a Ray head on this GPU machine (RELAX_HOST=address)
	@scripts/run.sh ray_up

.PHONY: train
train: ## Train on the cluster at RAY_ADDRESS (LIMIT=32; DRY_RUN=1 only plans)
	@scripts/run.sh train

.PHONY: accept
accept: ## Judge the last run layer by layer, with evidence
	@scripts/run.sh accept

.PHONY: report
report: ## Write one HTML file about a run, with every trajectory (RUN=name; the last run without)
	@scripts/run.sh report

.PHONY: gym-down
gym-down: ## End the graph, after cleaning up its running trials
	@scripts/run.sh gym_down

##@ Evaluation

.PHONY: audit
audit: ## Audit the rows of a SPLIT through the verifier: floor, ceiling, duplicates, prompt sizes
	@scripts/run.sh audit

.PHONY: eval
eval: ## Evaluate the model at MODEL_URL on the rows of a SPLIT (REPEATS=4, WIRE=responses or chat)
	@scripts/run.sh eval

.PHONY: compare
compare: ## Compare two evaluations or rollout dumps (BASE=name CANDIDATE=name)
	@scripts/run.sh compare

##@ Development

.PHONY: test
test: ## Run all tests
	@tests/run.sh

.PHONY: bench
bench: ## Measure the environment's speed, patched and unpatched in turns
	@scripts/run.sh bench

.PHONY: faults
faults: ## Inject every fault while trials run, and report what recovers and what users see
	@scripts/run.sh faults

.PHONY: abuse
abuse: ## Attack a graph of its own with hostile and excessive clients
	@scripts/run.sh abuse

.PHONY: lint
lint: ## Check format, types and shell scripts
	@tests/lint.sh

.PHONY: format
format: ## Rewrite files into the format that lint wants
	@tests/lint.sh --fix

.PHONY: lock
lock: ## Resolve the lock files anew (needs uv)
	@scripts/lock.sh

.PHONY: clean
clean: ## Stop, then remove the virtual environment and the run folder
	@scripts/run.sh stop && rm -rf .venv .venv.lock data/run

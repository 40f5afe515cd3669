# Forebay: build and proof. `make help` lists what there is.
#
# Sources are found by wildcard, so that adding a file needs no change here; a folder that does
# not exist yet is an empty list. One build lives in one folder, build/$(BUILD):
#   plain  -O2 -g, what is shipped and measured
#   asan   -O1 -g, address and undefined-behaviour sanitizers, test hooks: runs the suites
#   hooks  -O2 -g, test hooks: crash tests and the deliberate faults of the demo
#   clang  like hooks but by clang, compiled only: a second opinion on warnings
#   fuzz   by clang, libFuzzer with the sanitizers

BUILD ?= plain
JOBS  ?= $(shell nproc 2>/dev/null || echo 2)
B     := build/$(BUILD)

CC       := gcc
CLANG    := clang-14
WARNINGS := -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla \
            -Wpointer-arith
CPPFLAGS := -Isrc -Iinclude -I. -D_GNU_SOURCE=
CFLAGS   := -std=gnu11 $(WARNINGS) -g -fno-omit-frame-pointer -fPIC -fno-semantic-interposition
LDFLAGS  := -Wl,--as-needed
LDLIBS   := -luring -lxxhash -lmicrohttpd -lyaml -ljansson -lpthread

SANITIZE := -fsanitize=address,undefined -fno-sanitize-recover=all

ifeq ($(BUILD),plain)
CFLAGS   += -O2
else ifeq ($(BUILD),asan)
CFLAGS   += -O1 $(SANITIZE)
LDFLAGS  += $(SANITIZE)
CPPFLAGS += -DFB_TEST_HOOKS
else ifeq ($(BUILD),hooks)
CFLAGS   += -O2
CPPFLAGS += -DFB_TEST_HOOKS
else ifeq ($(BUILD),clang)
CC       := $(CLANG)
CFLAGS   += -O1
CPPFLAGS += -DFB_TEST_HOOKS
else ifeq ($(BUILD),fuzz)
CC       := $(CLANG)
# With the counters by which tools/fuzz sees which lines were reached.
COVERAGE := -fprofile-instr-generate -fcoverage-mapping
CFLAGS   += -O1 $(SANITIZE) -fsanitize=fuzzer-no-link $(COVERAGE)
LDFLAGS  += $(SANITIZE) $(COVERAGE)
CPPFLAGS += -DFB_TEST_HOOKS
else
$(error BUILD=$(BUILD) is unknown; use plain, asan or hooks)
endif

# Extra flags of one run, say EXTRA_CFLAGS=--coverage with its own BUILD folder.
CFLAGS  += $(EXTRA_CFLAGS)
LDFLAGS += $(EXTRA_LDFLAGS)

# ---- sources -------------------------------------------------------------------------------

LIB_FOLDERS    := base engine proto io node client
SHARED_FOLDERS := base proto client
PROGRAMS       := sim sweep crash demo bench

lib_src    := $(foreach d,$(LIB_FOLDERS),$(wildcard src/$(d)/*.c))
# The client's half: without the node's side of the protocol, which calls the engine.
node_proto := $(wildcard src/proto/server*.c src/proto/session*.c src/proto/outbox.c)
shared_src := $(filter-out $(node_proto),$(foreach d,$(SHARED_FOLDERS),$(wildcard src/$(d)/*.c)))
server_src := $(wildcard src/server/*.c)
cli_src    := $(wildcard src/cli/*.c)
help_src   := $(wildcard test/lib/*.c)
unit_src   := $(wildcard test/unit/*/*_test.c) $(wildcard test/model/*_test.c) \
              $(wildcard test/e2e/*_test.c)
fuzz_src   := $(wildcard test/fuzz/*_fuzz.c)
prog_src   := $(foreach p,$(PROGRAMS),$(wildcard test/$(p)/*.c))

# The name of this variable is a comma, for use inside a function's arguments.
, := ,
objects     = $(patsubst %.c,$(B)/obj/%.o,$(1))
plain_src  := $(lib_src) $(server_src) $(cli_src) $(help_src) $(unit_src) $(prog_src)
all_src    := $(plain_src) $(fuzz_src)
all_obj    := $(call objects,$(all_src))

lib        := $(B)/libforebay-all.a
helpers    := $(B)/libtest.a
units      := $(patsubst %.c,$(B)/%,$(unit_src))
fuzzers    := $(patsubst %.c,$(B)/%,$(fuzz_src))
programs   := $(foreach p,$(PROGRAMS),$(if $(wildcard test/$(p)/*.c),$(B)/fb-$(p)))
# The daemon without its main(), for tests of its settings.
server_lib := $(B)/libserver.a
daemon     := $(if $(server_src),$(B)/forebayd)
cli        := $(if $(cli_src),$(B)/forebay)
map        := $(wildcard src/client/forebay.map)
map_flag   := $(addprefix -Wl$(,)--version-script=,$(map))
soname     := libforebay.so.0
shared     := $(if $(filter plain hooks,$(BUILD)),$(B)/libforebay.so)

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SECONDARY:
.PHONY: all run objects units fuzzers test demo sim sweep crash fuzz corpora bench check-clang format tidy \
        install setup clean help

# Unit tests ask for planted bugs and faults, which the build that is shipped does not have.
all: $(lib) $(helpers) $(shared) $(daemon) $(cli) $(programs) $(if $(filter plain,$(BUILD)),,$(units))
# What is needed to run a node and the programs that prove it, without the unit tests.
run: $(shared) $(daemon) $(cli) $(programs) ; @:
objects: $(call objects,$(all_src)) ; @:
units: $(units) ; @:
fuzzers: $(fuzzers) ; @:

# ---- rules ---------------------------------------------------------------------------------

$(B)/obj/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(call say,CC,$@)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c -o $@ $<

# An archive is made anew, so that the object of a deleted source does not linger in it; the list
# of its members is a file that changes only when the list does.
define archive_rule
$(1): $(call objects,$(2)) $(1).list
	$$(call say,AR,$$@)
	$$(Q)rm -f $$@ && ar rcs $$@ $(call objects,$(2))
$(1).list: FORCE
	@mkdir -p $$(@D)
	@echo '$(2)' | cmp -s - $$@ || echo '$(2)' > $$@
endef
$(eval $(call archive_rule,$(lib),$(lib_src)))
$(eval $(call archive_rule,$(helpers),$(help_src)))
$(eval $(call archive_rule,$(server_lib),$(filter-out src/server/main.c,$(server_src))))
.PHONY: FORCE
FORCE:

$(B)/$(soname): $(call objects,$(shared_src)) $(map) $(lib).list
	$(call say,LD,$@)
	$(Q)$(CC) -shared $(LDFLAGS) $(map_flag) -Wl,-z,defs \
	    -Wl,-soname,$(soname) -o $@ $(filter %.o,$^) $(LDLIBS)
# The name to link with; the one above is what a program looks for when it starts.
$(B)/libforebay.so: $(B)/$(soname)
	$(Q)ln -sf $(soname) $@

link = $(Q)$(CC) $(LDFLAGS) -o $@ $(filter %.o,$^) $(filter %.a,$^) $(LDLIBS)

$(B)/forebayd: $(call objects,$(server_src)) $(lib)
	$(call say,LD,$@)
	$(link)

$(B)/forebay: $(call objects,$(cli_src)) $(lib)
	$(call say,LD,$@)
	$(link)

define program_rule
$(B)/fb-$(1): $(call objects,$(wildcard test/$(1)/*.c)) $(helpers) $(server_lib) $(lib)
	$$(call say,LD,$$@)
	$$(link) $(if $(filter bench,$(1)),-lhiredis -lm)
endef
$(foreach p,$(PROGRAMS),$(eval $(call program_rule,$(p))))

$(units): $(B)/%: $(B)/obj/%.o $(helpers) $(lib)
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(link) -lcmocka

$(fuzzers): $(B)/%: $(B)/obj/%.o $(helpers) $(server_lib) $(lib)
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(link) -fsanitize=fuzzer

-include $(all_obj:.o=.d)

# `make V=1` shows the commands.
Q   := $(if $(V),,@)
say  = $(if $(V),,@printf '  %-3s %s\n' '$(1)' '$(patsubst $(B)/%,%,$(2)) [$(BUILD)]')

# ---- what people type ----------------------------------------------------------------------

# A build inside a recipe: parallel, unless the caller already runs a job server.
submake = $(MAKE) --no-print-directory $(if $(findstring jobserver,$(MAKEFLAGS)),,-j$(JOBS))

test: setup
	+$(Q)$(submake) BUILD=asan all
	+$(Q)$(submake) BUILD=plain run build/plain/test/model/simspeed_test
	+$(Q)$(submake) BUILD=hooks run
	+$(Q)$(submake) BUILD=clang objects
	+$(Q)$(submake) BUILD=fuzz fuzzers
	$(Q)tools/run-tests

# The old behaviours that BREAK asks for exist in test builds only.
demo: demo_build = $(if $(BREAK),hooks,plain)
demo: setup
	+$(Q)$(submake) BUILD=$(demo_build) $(addprefix build/$(demo_build)/,forebayd forebay fb-demo)
	$(Q)build/$(demo_build)/fb-demo $(if $(BREAK),--break $(BREAK))

sim: setup
	+$(Q)$(submake) BUILD=hooks build/hooks/fb-sim
	$(Q)build/hooks/fb-sim $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),2000)) \
	    $(if $(CLIENTS),--clients $(CLIENTS)) $(if $(BUG),--bug $(BUG))

sweep: setup
	+$(Q)$(submake) BUILD=asan build/asan/fb-sweep
	$(Q)build/asan/fb-sweep

crash: setup
	+$(Q)$(submake) BUILD=hooks build/hooks/forebayd build/hooks/forebay build/hooks/fb-crash
	$(Q)build/hooks/fb-crash --cycles $(or $(CYCLES),100) $(if $(SEED),--seed $(SEED))

# Each fuzzer starts from its corpus in the tree and keeps what it finds in the build folder.
fuzz: setup
	+$(Q)$(submake) BUILD=fuzz fuzzers
	$(Q)tools/fuzz --seconds $(or $(FUZZ_SECONDS),60)
FUZZ_SECONDS := $(if $(filter command line,$(origin SECONDS)),$(SECONDS))

# Writes anew what the fuzzers' own programs put into their corpora.
corpora: setup
	+$(Q)$(submake) BUILD=fuzz fuzzers
	$(Q)tools/fuzz --seeds

bench:
	$(Q)tools/setup && tools/setup bench
	+$(Q)$(submake) BUILD=plain build/plain/forebayd build/plain/forebay build/plain/fb-bench
	$(Q)build/plain/fb-bench $(if $(ROW),--row $(ROW)) $(if $(RUNS),--runs $(RUNS))

check-clang: setup
	+$(Q)$(submake) BUILD=clang objects

format:
	$(Q)find include src test -name '*.[ch]' -not -path 'test/tidy/*' | xargs -r clang-format-14 -i

tidy:
	$(Q)tools/tidy

# The daemon, the command, the library with its header, and a file for pkg-config.
PREFIX ?= /usr/local
install: $(daemon) $(cli) $(shared)
	$(Q)install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib/pkgconfig \
	    $(DESTDIR)$(PREFIX)/include/forebay
	$(Q)install -m 755 $(daemon) $(cli) $(DESTDIR)$(PREFIX)/bin
	$(Q)install -m 755 $(B)/$(soname) $(DESTDIR)$(PREFIX)/lib
	$(Q)ln -sf $(soname) $(DESTDIR)$(PREFIX)/lib/libforebay.so
	$(Q)install -m 644 include/forebay/*.h $(DESTDIR)$(PREFIX)/include/forebay
	$(Q)sed 's|@PREFIX@|$(PREFIX)|' src/client/forebay.pc.in \
	    > $(DESTDIR)$(PREFIX)/lib/pkgconfig/forebay.pc

setup:
	$(Q)tools/setup

clean:
	rm -rf build

help:
	@echo 'make                    build everything into build/plain (BUILD=asan, BUILD=hooks)'
	@echo 'make demo               build, start a server, replay both reports'
	@echo 'make test               install what is missing, build all, run every suite'
	@echo 'make sim SEEDS=n        n simulated fault schedules; SEED=n replays one; BUG=name'
	@echo 'make sweep              each allocation and each I/O failing in turn'
	@echo 'make crash CYCLES=n     kill -9 of the real server, n times'
	@echo 'make fuzz SECONDS=n     every parser, n seconds each'
	@echo 'make bench              figures beside fio, memcpy, Redis'
	@echo 'make check-clang        compile everything with clang as well'
	@echo 'make format | tidy      apply the formatter | check the rules of the house'
	@echo 'make install PREFIX=p   the daemon, the command, the library, its header (DESTDIR=d)'
	@echo 'make setup | clean      install packages | delete build/'
	@echo 'V=1 shows commands. JOBS=n limits parallel compiles.'

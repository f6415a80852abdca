/* SPDX-License-Identifier: Apache-2.0 */

/*
 * options: what can be set of the agent, one row each in options.def, and how it is read at the
 * start. Start of the process only.
 */
#ifndef KVTIER_OPTIONS_H
#define KVTIER_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "backends/runtime/option.h"
#include "kvtier/engine_spec.h"

/* A field per row of options.def; texts and lists live in the set they were read with. */
struct agent_options {
#define OPTION OPTION_FIELD
#include "kvtier/options.def"
};

enum {
    AGENT_OPTION_COUNT = 0
#define OPTION(...) +1
#include "kvtier/options.def"
};

/* Values of ssd_io. */
enum { AGENT_IO_AUTO, AGENT_IO_URING, AGENT_IO_THREADS };

enum { AGENT_EVICTION_COUNT_MAX = 16 };

/* Where option token-blocks-max is 0. The most is 2 GiB of memory for each worker, if the tiers
 * ever hold so many. */
enum { AGENT_TOKEN_BLOCKS_MIN = 1 << 18, AGENT_TOKEN_BLOCKS_MAX = 1 << 23 };

/* The rows. Self-referential: do not copy it. */
struct agent_option_table {
    struct option_table table;
    struct option options[AGENT_OPTION_COUNT];
    const char *evictions[AGENT_EVICTION_COUNT_MAX + 1]; /* names of policies, NULL at the end */
};

void agent_option_table_init(struct agent_option_table *table);

/*
 * Reads flags, environment and, if one is named, the file. Initialises set over table and options;
 * set owns what options points to: release it when they are no longer needed. Returns an exit code:
 * EXIT_CODE_OK, or _USAGE or _CONFIG with all that is wrong in set->errors. With --help, --man or
 * --version nothing but the flags is read.
 */
MUST_CHECK int agent_options_parse(struct option_set *set, const struct agent_option_table *table,
                                   struct agent_options *options, struct options_input input);

/* What is said of the engines, for engine_specs_make(). */
struct engine_lists agent_options_engines(const struct agent_options *options);

/* Blocks of tokens that a worker's reporter may know, where the tiers beneath its engine have so
 * many: what option token-blocks-max says; without, all of those and AGENT_TOKEN_BLOCKS_MIN of the
 * engine's own, but no more than AGENT_TOKEN_BLOCKS_MAX. */
uint32_t agent_options_token_blocks(const struct agent_options *options, uint64_t tier_blocks);

/* The whole text of `samovar-agent --help`, and of `samovar-agent --man`. */
MUST_CHECK int agent_options_help(const struct agent_option_table *table, struct buf *out);
MUST_CHECK int agent_options_man(const struct agent_option_table *table, struct buf *out);

/* Logs what is legal and yet most likely a mistake. */
void agent_options_log_doubts(const struct agent_options *options);

#endif

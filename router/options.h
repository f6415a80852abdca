/* SPDX-License-Identifier: Apache-2.0 */

/*
 * options: what can be set of the router, one row each in options.def, and how it is read at the
 * start. Start of the process only.
 */
#ifndef ROUTER_OPTIONS_H
#define ROUTER_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "backends/runtime/option.h"

/* A field per row of options.def; texts and lists live in the set they were read with. */
struct router_options {
#define OPTION OPTION_FIELD
#include "router/options.def"
};

enum {
    ROUTER_OPTION_COUNT = 0
#define OPTION(...) +1
#include "router/options.def"
};

/* The rows. Self-referential: do not copy it. */
struct router_option_table {
    struct option_table table;
    struct option options[ROUTER_OPTION_COUNT];
};

/* policy_names are the words of --policy, NULL-terminated and borrowed; NULL takes any word. */
void router_option_table_init(struct router_option_table *table, const char *const *policy_names);

/*
 * Reads flags, environment and, if one is named, the file. Initialises set over table and options;
 * set owns what options points to: release it when they are no longer needed. Returns an exit code:
 * EXIT_CODE_OK, or _USAGE or _CONFIG with all that is wrong in set->errors. With --help or
 * --version nothing but the flags is read.
 */
MUST_CHECK int options_parse(struct option_set *set, const struct router_option_table *table,
                             struct router_options *options, struct options_input input);

/* The whole text of `samovar-router --help`. */
MUST_CHECK int options_help(const struct router_option_table *table, struct buf *out);

#endif

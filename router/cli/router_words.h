/* SPDX-License-Identifier: Apache-2.0 */

/*
 * router_words: what a command reads as samovar-router itself would: the words left of its
 * arguments when its own are taken out, the environment, and the file that either names. So what
 * passes here passes there.
 */
#ifndef ROUTER_CLI_ROUTER_WORDS_H
#define ROUTER_CLI_ROUTER_WORDS_H

#include <stdbool.h>

#include "backends/runtime/must_check.h"
#include "router/options.h"
#include "router/policy/policy.h"

enum { ROUTER_WORD_COUNT_MAX = 256 };

struct router_words {
    const char *words[ROUTER_WORD_COUNT_MAX + 3]; /* with the command and a --config */
    int count;
    bool is_file_due;
};

/* What was read. Self-referential: do not copy it. */
struct router_reading {
    const char *policies[POLICY_NAME_COUNT_MAX];
    struct router_option_table table;
    struct router_options options;
    struct option_set set; /* release it */
};

/* command as an error names it, "samovar check"; argc is that of the whole command. -1: more than
 * can be taken, which was said on standard error. */
MUST_CHECK int router_words_init(struct router_words *words, const char *command, int argc);

/* The next argument that is none of the command's own. The first of these is FILE, unless it is a
 * switch. */
void router_words_add(struct router_words *words, const char *word);

/* Returns the exit code of options_parse(). */
MUST_CHECK int router_words_read(const struct router_words *words, struct router_reading *reading);

#endif

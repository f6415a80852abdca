/* SPDX-License-Identifier: Apache-2.0 */

/*
 * config: the options in force, where each came from, and reading them again while the router runs:
 * all or nothing. What a change means is the app's business. Loop thread only.
 *
 *    config_init() --> in force            config_prepare() --> a candidate, without a mistake
 *                         ^                       |        or: logged why not, nothing changed
 *                         +----- config_commit() -+- config_discard(), where it cannot be applied
 */
#ifndef ROUTER_CONFIG_H
#define ROUTER_CONFIG_H

#include <stdbool.h>
#include <stddef.h>

#include "backends/runtime/must_check.h"
#include "router/options.h"

struct config_version {
    struct option_set set;
    struct router_options options;
};

struct config {
    struct router_option_table table;
    struct options_input input;
    struct config_version versions[2]; /* in force and candidate, in turns */
    int in_force;                      /* which of them */
    bool has_candidate;
};

/* Reads everything for the first time; input and policy_names are borrowed for good. An exit code,
 * as options_parse(). Self-referential: do not copy it. */
MUST_CHECK int config_init(struct config *config, const char *const *policy_names,
                           struct options_input input);

/* In force. What they point to lives until the next commit but one. */
const struct router_options *config_options(const struct config *config);

/* The same with origins and errors, for people. */
const struct option_set *config_set(const struct config *config);

/*
 * Reads flags, environment and file again. Options that need a restart keep the value in force in
 * the candidate, and a warning says so. -EINVAL: each mistake was logged, there is no candidate.
 */
MUST_CHECK int config_prepare(struct config *config);

/* The candidate, while there is one. */
const struct router_options *config_candidate(const struct config *config);

/* The candidate is in force now; each option that changed is logged. Returns how many did. */
size_t config_commit(struct config *config);

/* The candidate cannot be applied, because of what that option says: logged as any mistake. There
 * is no candidate any more; nothing changed. */
void config_discard(struct config *config, const char *option, const char *why);

/* Logs what is doubtful about the options in force. */
void config_log_doubts(const struct config *config);

void config_release(struct config *config);

#endif

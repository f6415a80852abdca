/* SPDX-License-Identifier: Apache-2.0 */

/* check_json: what `samovar check --json` prints, for editors and pipelines. */
#ifndef ROUTER_CLI_CHECK_JSON_H
#define ROUTER_CLI_CHECK_JSON_H

#include <stdbool.h>
#include <stddef.h>

#include "backends/runtime/must_check.h"
#include "router/doubts.h"

struct check_findings {
    const struct option_set *set;
    const struct doubt *doubts[DOUBT_COUNT_MAX];
    size_t doubt_count;
    bool wants_values;
};

/*
 * One object in a line: {"ok": no error, "errors": [{"where", "what", "advice"}], "doubts":
 * [{"option", "value", "origin", "why", "advice"}]}; with wants_values "options" as well, by name:
 * {"value", "origin"}, values as texts that a file may hold. -ENOBUFS, -ENOMEM.
 */
MUST_CHECK int check_json_write(const struct check_findings *findings, struct buf *out);

#endif

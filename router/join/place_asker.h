/* SPDX-License-Identifier: Apache-2.0 */

/*
 * place_asker: asks workers, once a model and now and then again, where its template prints the
 * tools, and keeps the answers for who names prompts. Nobody waits for it: until it is known, tools
 * stand first. Loop thread only.
 */
#ifndef ROUTER_JOIN_PLACE_ASKER_H
#define ROUTER_JOIN_PLACE_ASKER_H

#include "backends/io_loop.h"
#include "backends/json/json_scan.h"
#include "backends/worker_set.h"
#include "router/prompt/tool_place.h"

struct place_asker;

struct place_asker_config {
    struct io_loop *io;
    const struct worker_set *workers;
    struct json_scanner *scanner; /* of the loop */
    const char *authorization;    /* for workers that want a key; NULL: none */
    const uint8_t *secret;
};

/* NULL: no memory. */
struct place_asker *place_asker_create(struct place_asker_config config);

/* worker has read a prompt with tools for model: asks it, unless that is known or being asked. */
void place_asker_note(struct place_asker *asker, const struct worker *worker, const char *model);

/* What is known by now; good until place_asker_destroy(), and changed by what workers answer. */
const struct tool_places *place_asker_places(const struct place_asker *asker);

/* Another process answers there now, or none: what was found out there is to be asked again. */
void place_asker_forget_worker(struct place_asker *asker, const struct worker *worker);

/* Gives up what is being asked. Before the workers' pools are closed; nothing is asked then. */
void place_asker_close(struct place_asker *asker);

/* After it was closed. NULL is fine. */
void place_asker_destroy(struct place_asker *asker);

#endif

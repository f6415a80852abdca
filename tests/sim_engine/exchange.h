/* SPDX-License-Identifier: Apache-2.0 */

/*
 * exchange: one client request and its answer, one after the other on one connection: routes,
 * faults on demand, heads and framing. Loop thread only.
 */
#ifndef TESTS_SIM_ENGINE_EXCHANGE_H
#define TESTS_SIM_ENGINE_EXCHANGE_H

#include <uv.h>

struct engine;
struct list;
struct list_node;

/* Takes the next client of listener; is a node of all until its connection is closed, then frees
 * itself. Borrows engine and all for that long. */
void exchange_accept(uv_stream_t *listener, struct engine *engine, struct list *all);

/* Closes the connection of the exchange that has this node. */
void exchange_close(struct list_node *node);

#endif

/* SPDX-License-Identifier: Apache-2.0 */

/*
 * exchange: one client request and its answer, one after the other on one connection: routes,
 * faults on demand, heads and framing. Loop thread only.
 */
#ifndef TESTS_SIM_ENGINE_EXCHANGE_H
#define TESTS_SIM_ENGINE_EXCHANGE_H

struct list_node;
struct server;

/* Takes the next client of the server's listener; lives on server->exchanges until its connection
 * is closed, then frees itself. */
void exchange_accept(struct server *server);

/* Closes the connection of the exchange that has this node in server->exchanges. */
void exchange_close(struct list_node *node);

#endif

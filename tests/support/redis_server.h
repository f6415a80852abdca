/* SPDX-License-Identifier: Apache-2.0 */

/*
 * redis_server: a real redis-server for one test: on a Unix socket in a folder of its own, without
 * persistence, killed with the test. A fault of the server itself aborts.
 */
#ifndef TESTS_SUPPORT_REDIS_SERVER_H
#define TESTS_SUPPORT_REDIS_SERVER_H

#include <stddef.h>

#include "backends/redis/redis_url.h"

struct redis_server;

/* options: as on its command line, up to a NULL; borrowed until the end. Returns when it listens;
 * it may still be loading. */
struct redis_server *redis_server_create(const char *const *options);

/*
 * The same with the users of a file: docker/users.acl or users-6.2.acl, whose agent-1 is for
 * workers on node here. The default user, who may do nothing there, may do everything here: it is
 * the test's.
 */
struct redis_server *redis_server_create_with_users(const char *const *options, const char *name,
                                                    const char *node);

/* Where it listens; also while nobody does. */
struct redis_url redis_server_url(const struct redis_server *server);
const char *redis_server_folder(const struct redis_server *server);

/* Sends one command as a person would type it and waits for what comes back, in RESP; user is the
 * default user. A stopped server never answers. */
void redis_server_ask(const struct redis_server *server, const char *command, char *reply,
                      size_t reply_size);

/* SIGSTOP, SIGCONT. */
void redis_server_stop(struct redis_server *server);
void redis_server_continue(struct redis_server *server);

/* SIGKILL; and another one in its place, empty but for what was saved to the folder. */
void redis_server_kill(struct redis_server *server);
void redis_server_restart(struct redis_server *server);

void redis_server_destroy(struct redis_server *server);

#endif

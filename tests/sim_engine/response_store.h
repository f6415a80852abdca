/* SPDX-License-Identifier: Apache-2.0 */

/* response_store: the answers of /v1/responses by their ids, the newest ones, up to a count. A
 * response that is stored again under its id takes its place. Pure; one thread at a time. */
#ifndef TESTS_SIM_ENGINE_RESPONSE_STORE_H
#define TESTS_SIM_ENGINE_RESPONSE_STORE_H

#include <stddef.h>

#include "backends/runtime/buf.h"
#include "backends/runtime/slice.h"

struct response_store;

struct stored_response {
    char *id;
    struct buf body;     /* of the answer, as it was given */
    struct buf messages; /* the conversation up to it and with it: see responses_form.h */
};

/* capacity 0: keeps nothing, as vLLM does unless told otherwise. */
struct response_store *response_store_create(size_t capacity);
void response_store_destroy(struct response_store *store);

/* Copies. The oldest one makes room. */
void response_store_put(struct response_store *store, struct slice id, struct slice body,
                        struct slice messages);

/* NULL: unknown, or forgotten, or store is NULL. Valid until the next put. */
const struct stored_response *response_store_find(const struct response_store *store,
                                                  struct slice id);

#endif

/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/response_store.h"

#include <assert.h>
#include <stdlib.h>

#include "tests/sim_engine/json_text.h"

/* A ring: the slot written longest ago is the next. Looked through from end to end: a thousand
 * comparisons are nothing beside one prefill. */
struct response_store {
    struct stored_response *slots;
    size_t capacity;
    size_t next;
};

struct response_store *response_store_create(size_t capacity)
{
    struct response_store *store = calloc(1, sizeof *store);

    assert(store != NULL);
    store->slots = calloc(capacity > 0 ? capacity : 1, sizeof *store->slots);
    assert(store->slots != NULL);
    store->capacity = capacity;
    for (size_t i = 0; i < capacity; i++) {
        buf_init(&store->slots[i].body, SIZE_MAX);
        buf_init(&store->slots[i].messages, SIZE_MAX);
    }
    return store;
}

static void empty(struct stored_response *slot)
{
    free(slot->id);
    slot->id = NULL;
    buf_release(&slot->body);
    buf_release(&slot->messages);
}

void response_store_destroy(struct response_store *store)
{
    if (store == NULL)
        return;
    for (size_t i = 0; i < store->capacity; i++)
        empty(&store->slots[i]);
    free(store->slots);
    free(store);
}

static struct stored_response *find(const struct response_store *store, struct slice id)
{
    for (size_t i = 0; i < store->capacity; i++) {
        struct stored_response *slot = &store->slots[i];

        if (slot->id != NULL && slice_eq(id, slice_of_string(slot->id)))
            return slot;
    }
    return NULL;
}

void response_store_put(struct response_store *store, struct slice id, struct slice body,
                        struct slice messages)
{
    struct stored_response *slot = find(store, id);

    if (store->capacity == 0)
        return;
    if (slot == NULL) {
        slot = &store->slots[store->next];
        store->next = (store->next + 1) % store->capacity;
    }
    empty(slot);
    slot->id = strndup(id.ptr, id.len);
    assert(slot->id != NULL);
    text_put(&slot->body, body);
    text_put(&slot->messages, messages);
}

const struct stored_response *response_store_find(const struct response_store *store,
                                                  struct slice id)
{
    return store != NULL ? find(store, id) : NULL;
}

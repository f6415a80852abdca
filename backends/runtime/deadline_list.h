/* SPDX-License-Identifier: Apache-2.0 */

/*
 * deadline_list: who waits at most how long, for waits that all last equally long. Because every
 * wait of one list has the same length, the list stays in order of expiry by appending: arming and
 * disarming cost a few pointer writes, which a heap of timers cannot do per relayed event.
 * Pure; it never fires by itself: its owner asks who has expired. One thread at a time.
 */
#ifndef BACKENDS_RUNTIME_DEADLINE_LIST_H
#define BACKENDS_RUNTIME_DEADLINE_LIST_H

#include <stdint.h>

#include "backends/runtime/list.h"

struct deadline {
    struct list_node node; /* in the list that it is armed in, or unlinked */
    struct deadline_list *list;
    uint64_t expires_ms;
};

struct deadline_list {
    struct list list;     /* of struct deadline, earliest first */
    uint64_t duration_ms; /* of every wait in this list; 0: waits never expire */
};

static inline void deadline_list_init(struct deadline_list *list, uint64_t duration_ms)
{
    list_init(&list->list);
    list->duration_ms = duration_ms;
}

static inline void deadline_init(struct deadline *deadline)
{
    list_node_init(&deadline->node);
    deadline->list = NULL;
    deadline->expires_ms = 0;
}

static inline void deadline_disarm(struct deadline *deadline)
{
    if (list_node_is_linked(&deadline->node))
        list_remove(&deadline->list->list, &deadline->node);
    deadline->list = NULL;
}

/* Starts the wait of list anew; whatever it waited for before is over. */
static inline void deadline_arm(struct deadline *deadline, struct deadline_list *list,
                                uint64_t now_ms)
{
    deadline_disarm(deadline);
    if (list->duration_ms == 0)
        return;
    deadline->list = list;
    deadline->expires_ms = now_ms + list->duration_ms;
    list_append(&list->list, &deadline->node);
}

/*
 * Every wait of list lasts this long from now on, those that run too: as if it had been so when
 * they began. All of them move by the same span, so that their order stays; moving only later ones
 * would break it when waits become shorter. 0 ends them all.
 */
static inline void deadline_list_set_duration(struct deadline_list *list, uint64_t duration_ms)
{
    const struct list_node *head = &list->list.head;
    uint64_t old_ms = list->duration_ms;

    list->duration_ms = duration_ms;
    while (duration_ms == 0 && list->list.count > 0)
        deadline_disarm((struct deadline *)(void *)list->list.head.next); /* its first member */
    for (struct list_node *node = list->list.head.next; node != head; node = node->next) {
        struct deadline *deadline = (struct deadline *)(void *)node;

        deadline->expires_ms = deadline->expires_ms - old_ms + duration_ms;
    }
}

/* The first that has expired, still armed; NULL if none. */
static inline struct deadline *deadline_list_expired(struct deadline_list *list, uint64_t now_ms)
{
    struct deadline *first;

    if (list->list.count == 0)
        return NULL;
    first = (struct deadline *)(void *)list->list.head.next; /* node is its first member */
    return first->expires_ms <= now_ms ? first : NULL;
}

#endif

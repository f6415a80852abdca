/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/worker_set.h"

#include "backends/json/json_scan.h"
#include "backends/json/json_write.h"
#include "backends/runtime/buf.h"
#include "backends/runtime/clock.h"
#include "backends/runtime/near_name.h"
#include "hashing/rendezvous.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/*
 * DESIGN
 *
 * Two arrays of pointers, because both lists are short (tens) and read far more often than changed:
 * a worker's index never moves, a model's does when one before it goes. An index that became free
 * is given again, so that tables by index stay small; a worker's id says which of its holders is
 * meant:
 *
 *   id = number of the addition << 10 | index
 *
 * A model belongs to whoever lists it. Learning a worker's list takes the worker off all models,
 * puts it on those of the body, and then drops models that nobody lists: so a model of several
 * workers survives one of them, and one that is down but has not spoken keeps its models.
 */

enum { MODEL_JSON_BYTES_MAX = 64 << 10 };

struct worker_set {
    struct worker_lists lists;
    struct worker *workers[WORKER_COUNT_MAX];
    size_t worker_count; /* places in use or used before */
    uint64_t added_count;
    struct model *models[MODEL_COUNT_MAX];
    size_t model_count;
    uint64_t ignored_model_count;
    struct json_scanner *scanner;
};

/* Bookkeeping of boot and of probes: without memory for it there is no point in going on. */
static void *must_allocate(void *memory)
{
    if (memory == NULL)
        abort();
    return memory;
}

struct worker_set *worker_set_create(void)
{
    struct worker_set *set = must_allocate(calloc(1, sizeof *set));

    worker_lists_init(&set->lists);
    set->lists.random = clock_now_us();
    set->scanner = must_allocate(json_scanner_create());
    return set;
}

static void model_destroy(struct model *model)
{
    free(model->id);
    free(model->json);
    free(model->workers);
    free(model);
}

void worker_set_destroy(struct worker_set *set)
{
    if (set == NULL)
        return;
    for (size_t i = 0; i < set->worker_count; i++) {
        assert(set->workers[i] == NULL || set->workers[i]->pool == NULL);
        free(set->workers[i]);
    }
    for (size_t i = 0; i < set->model_count; i++)
        model_destroy(set->models[i]);
    json_scanner_destroy(set->scanner);
    free(set);
}

struct worker_lists *worker_set_lists(struct worker_set *set)
{
    return &set->lists;
}

struct worker *worker_set_find_name(const struct worker_set *set, const char *name)
{
    for (size_t i = 0; i < set->worker_count; i++) {
        if (set->workers[i] != NULL && strcmp(set->workers[i]->name, name) == 0)
            return set->workers[i];
    }
    return NULL;
}

static size_t find_free_place(const struct worker_set *set)
{
    size_t place = 0;

    while (place < set->worker_count && set->workers[place] != NULL)
        place++;
    return place;
}

int worker_set_add(struct worker_set *set, const struct worker_place *place, uint64_t now_ms,
                   struct worker **worker)
{
    size_t index = find_free_place(set);
    struct worker *added;

    *worker = NULL;
    if (worker_set_find_name(set, place->name) != NULL)
        return -EEXIST;
    if (index == WORKER_COUNT_MAX)
        return -ENOSPC;
    added = must_allocate(calloc(1, sizeof *added));
    worker_init(added, &set->lists, now_ms);
    memcpy(added->name, place->name, sizeof added->name);
    memcpy(added->authority, place->authority, sizeof added->authority);
    added->address = place->address;
    added->rank = place->rank;
    added->rank_count = place->rank_count;
    added->index = (uint32_t)index;
    added->name_hash = rendezvous_id(added->name, strlen(added->name));
    added->id = ++set->added_count * WORKER_COUNT_MAX + index;
    set->workers[index] = added;
    if (index == set->worker_count)
        set->worker_count++;
    *worker = added;
    return 0;
}

struct worker *worker_set_find(const struct worker_set *set, uint64_t id)
{
    size_t index = id % WORKER_COUNT_MAX;
    struct worker *worker = index < set->worker_count ? set->workers[index] : NULL;

    return worker != NULL && worker->id == id ? worker : NULL;
}

size_t worker_set_count(const struct worker_set *set)
{
    return set->worker_count;
}

struct worker *worker_set_at(const struct worker_set *set, uint32_t index)
{
    assert(index < set->worker_count);

    return set->workers[index];
}

/* Where index is in model->workers, or where it would be put. */
static size_t find_place(const struct model *model, uint32_t index)
{
    size_t low = 0, high = model->worker_count;

    while (low < high) {
        size_t middle = (low + high) / 2;

        if (model->workers[middle] < index)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool is_listed_by(const struct model *model, uint32_t index)
{
    size_t place = find_place(model, index);

    return place < model->worker_count && model->workers[place] == index;
}

static void add_worker_to(struct model *model, uint32_t index)
{
    size_t place = find_place(model, index);

    if (place < model->worker_count && model->workers[place] == index)
        return;
    model->workers =
        must_allocate(realloc(model->workers, (model->worker_count + 1) * sizeof *model->workers));
    memmove(&model->workers[place + 1], &model->workers[place],
            (model->worker_count - place) * sizeof *model->workers);
    model->workers[place] = index;
    model->worker_count++;
}

static void remove_worker_from(struct model *model, uint32_t index)
{
    size_t place = find_place(model, index);

    if (place == model->worker_count || model->workers[place] != index)
        return;
    model->worker_count--;
    memmove(&model->workers[place], &model->workers[place + 1],
            (model->worker_count - place) * sizeof *model->workers);
}

static struct model *find_model(const struct worker_set *set, struct slice id)
{
    for (size_t i = 0; i < set->model_count; i++) {
        if (slice_eq(slice_of_string(set->models[i]->id), id))
            return set->models[i];
    }
    return NULL;
}

static bool is_usable_id(struct slice id)
{
    return id.len > 0 && id.len <= MODEL_ID_BYTES_MAX && memchr(id.ptr, '\0', id.len) == NULL;
}

static char *copy_string(struct slice text)
{
    return must_allocate(strndup(text.ptr, text.len));
}

static struct model *add_model(struct worker_set *set, struct slice id)
{
    struct model *model = must_allocate(calloc(1, sizeof *model));

    model->id = copy_string(id);
    set->models[set->model_count++] = model;
    return model;
}

/* Whether a list by the worker at index is what json is to be taken from. */
static bool speaks_for(const struct model *model, uint32_t index)
{
    return model->json == NULL || model->source == index || !is_listed_by(model, model->source);
}

/* Takes one entry of a worker's list; false when it is ignored. */
static bool learn_model(struct worker_set *set, uint32_t index, struct json_value entry)
{
    struct slice id = json_string(json_get(entry, "id"));
    struct model *model = find_model(set, id);
    struct buf json;

    if (!is_usable_id(id) || (model == NULL && set->model_count == MODEL_COUNT_MAX))
        return false;
    buf_init(&json, MODEL_JSON_BYTES_MAX);
    if (json_write_value(&json, entry) < 0) {
        buf_release(&json);
        return false;
    }
    if (model == NULL)
        model = add_model(set, id);
    if (speaks_for(model, index)) {
        free(model->json);
        model->json = copy_string(buf_slice(&json));
        model->is_lora = json_type(json_get(entry, "parent")) == JSON_STRING;
        model->source = index;
    }
    add_worker_to(model, index);
    buf_release(&json);
    return true;
}

static void drop_unlisted_models(struct worker_set *set)
{
    size_t kept = 0;

    for (size_t i = 0; i < set->model_count; i++) {
        if (set->models[i]->worker_count == 0)
            model_destroy(set->models[i]);
        else
            set->models[kept++] = set->models[i];
    }
    set->model_count = kept;
}

void worker_set_remove(struct worker_set *set, struct worker *worker, enum worker_reason reason,
                       uint64_t now_ms)
{
    assert(set->workers[worker->index] == worker);
    assert(worker->pool == NULL && worker->own.in_flight == 0);

    (void)worker_handle(worker, WORKER_EVENT_REMOVE, reason, now_ms);
    for (size_t i = 0; i < set->model_count; i++)
        remove_worker_from(set->models[i], worker->index);
    drop_unlisted_models(set);
    list_remove(&set->lists.by_state[WORKER_GONE], &worker->in_state);
    set->workers[worker->index] = NULL;
    free(worker);
}

/* ---- the panic floor ---- */

struct census {
    uint32_t reachable; /* UP, TRIAL or EJECTED */
    uint32_t up;
};

static struct census take_census(const struct worker_set *set, const struct model *model)
{
    struct census census = {0, 0};

    for (size_t i = 0; i < model->worker_count; i++) {
        const struct worker *worker = set->workers[model->workers[i]];

        census.reachable += worker_is_reachable(worker);
        census.up += worker->state == WORKER_UP;
    }
    return census;
}

static bool is_enough(uint32_t up, struct census census, uint32_t panic_percent)
{
    return up * 100 >= census.reachable * (100 - panic_percent);
}

bool worker_set_is_panic(const struct worker_set *set, const struct model *model,
                         uint32_t panic_percent)
{
    struct census census = take_census(set, model);

    return !is_enough(census.up, census, panic_percent);
}

bool worker_set_may_eject(const struct worker_set *set, const struct worker *worker,
                          uint32_t panic_percent)
{
    for (size_t i = 0; i < set->model_count; i++) {
        const struct model *model = set->models[i];
        struct census census;

        if (worker->state != WORKER_UP || !is_listed_by(model, worker->index))
            continue;
        census = take_census(set, model);
        if (!is_enough(census.up - 1, census, panic_percent))
            return false;
    }
    return true;
}

int worker_set_learn_models(struct worker_set *set, struct worker *worker, struct slice body)
{
    struct parse_error error;
    struct json_value root, list, entry;
    struct json_iterator entries;
    int learned = 0;
    int status = json_scan_copy(set->scanner, body, &root, &error);

    if (status < 0)
        return status;
    list = json_get(root, "data");
    if (json_type(list) != JSON_ARRAY)
        return -EINVAL;

    for (size_t i = 0; i < set->model_count; i++)
        remove_worker_from(set->models[i], worker->index);
    entries = json_iterate(list);
    while (json_next_element(&entries, &entry)) {
        if (learn_model(set, worker->index, entry))
            learned++;
        else
            set->ignored_model_count++;
    }
    drop_unlisted_models(set);
    json_scanner_trim(set->scanner);
    return learned;
}

size_t worker_set_model_count(const struct worker_set *set)
{
    return set->model_count;
}

uint64_t worker_set_ignored_model_count(const struct worker_set *set)
{
    return set->ignored_model_count;
}

const struct model *worker_set_model_at(const struct worker_set *set, size_t index)
{
    assert(index < set->model_count);

    return set->models[index];
}

const struct model *worker_set_find_model(const struct worker_set *set, struct slice id)
{
    return find_model(set, id);
}

bool worker_serves_model(const struct worker *worker, const struct model *model)
{
    return is_listed_by(model, worker->index);
}

size_t worker_set_near_models(const struct worker_set *set, struct slice id,
                              const struct model **near, size_t count_max)
{
    size_t costs[MODEL_NEAR_MAX];
    size_t count = 0;

    count_max = count_max < MODEL_NEAR_MAX ? count_max : MODEL_NEAR_MAX;
    for (size_t i = 0; i < set->model_count; i++) {
        size_t cost = near_name_cost(id, slice_of_string(set->models[i]->id));
        size_t place = count;

        if (cost == NEAR_NAME_FAR)
            continue;
        while (place > 0 && costs[place - 1] > cost)
            place--;
        if (place == count_max)
            continue;
        count = count < count_max ? count + 1 : count;
        for (size_t at = count - 1; at > place; at--) {
            costs[at] = costs[at - 1];
            near[at] = near[at - 1];
        }
        costs[place] = cost;
        near[place] = set->models[i];
    }
    return count;
}

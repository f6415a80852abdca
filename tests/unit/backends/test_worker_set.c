/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/worker_set.h"

#include "tests/support/leak_check.h"
#include "tests/support/worker_by_url.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>

enum { FIXTURE_BYTES_MAX = 16 << 10 };

static int add(struct worker_set *set, const char *url)
{
    struct worker *worker;

    return add_worker_by_url(set, url, 5, &worker);
}

/* A set with count workers on ports 1, 2, ... */
static struct worker_set *set_with_workers(uint32_t count)
{
    struct worker_set *set = worker_set_create();
    char url[64];

    for (uint32_t i = 0; i < count; i++) {
        snprintf(url, sizeof url, "http://127.0.0.1:%u", i + 1);
        cr_assert(eq(int, add(set, url), 0));
    }
    return set;
}

static int learn(struct worker_set *set, uint32_t index, const char *body)
{
    return worker_set_learn_models(set, worker_set_at(set, index), slice_of_string(body));
}

static const struct model *find(const struct worker_set *set, const char *id)
{
    return worker_set_find_model(set, slice_of_string(id));
}

TestSuite(worker_set, .fini = leak_check);

Test(worker_set, an_added_worker_is_starting_and_as_it_was_said)
{
    struct worker_set *set = worker_set_create();
    struct worker *worker;
    struct sockaddr_in address;

    int status = add_worker_by_url(set, "http://127.0.0.1:8001", 5, &worker);

    cr_assert(eq(int, status, 0));
    cr_assert(eq(str, worker->name, "http://127.0.0.1:8001"));
    cr_assert(eq(str, worker->authority, "127.0.0.1:8001"));
    cr_assert(eq(int, worker->state, WORKER_STARTING));
    cr_assert(eq(u64, worker->changed_ms, 5));
    cr_assert(eq(u32, worker->index, 0));
    memcpy(&address, &worker->address, sizeof address);
    cr_assert(eq(u16, ntohs(address.sin_port), 8001));
    cr_assert(eq(ptr, worker_set_at(set, 0), worker));
    cr_assert(eq(ptr, worker_set_find(set, worker->id), worker));
    cr_assert(eq(ptr, worker_set_find_name(set, "http://127.0.0.1:8001"), worker));
    cr_assert(eq(sz, worker_set_lists(set)->by_state[WORKER_STARTING].count, 1));
    worker_set_destroy(set);
}

Test(worker_set, the_same_worker_twice_is_refused)
{
    struct worker_set *set = set_with_workers(1);

    cr_assert(eq(int, add(set, "http://127.0.0.1:1/"), -EEXIST));

    cr_assert(eq(sz, worker_set_count(set), 1));
    worker_set_destroy(set);
}

Test(worker_set, the_number_of_workers_is_limited)
{
    struct worker_set *set = set_with_workers(WORKER_COUNT_MAX);

    cr_assert(eq(int, add(set, "http://127.0.0.1:60000"), -ENOSPC));

    worker_set_destroy(set);
}

Test(worker_set, a_removed_worker_leaves_its_index_to_another_and_its_id_to_nobody)
{
    struct worker_set *set = set_with_workers(3);
    struct worker *removed = worker_set_at(set, 1);
    uint64_t id = removed->id;
    struct worker *added;
    cr_assert(eq(int, learn(set, 1, "{\"data\":[{\"id\":\"a\"},{\"id\":\"b\"}]}"), 2));
    cr_assert(eq(int, learn(set, 2, "{\"data\":[{\"id\":\"b\"}]}"), 1));

    worker_set_remove(set, removed, WORKER_REASON_DISCOVERY, 9);

    cr_assert(eq(ptr, worker_set_at(set, 1), NULL));
    cr_assert(eq(ptr, worker_set_find(set, id), NULL));
    cr_assert(eq(ptr, worker_set_find_name(set, "http://127.0.0.1:2"), NULL));
    cr_assert(eq(ptr, (void *)find(set, "a"), NULL), "nobody lists it any more");
    cr_assert(eq(sz, find(set, "b")->worker_count, 1));
    cr_assert(eq(sz, worker_set_lists(set)->by_state[WORKER_GONE].count, 0));
    cr_assert(eq(int, add_worker_by_url(set, "http://127.0.0.1:9", 5, &added), 0));
    cr_assert(eq(u32, added->index, 1));
    cr_assert(ne(u64, added->id, id));
    cr_assert(eq(ptr, worker_set_find(set, id), NULL));
    cr_assert(not(worker_serves_model(added, find(set, "b"))));
    worker_set_destroy(set);
}

/* Puts the worker at index into service, or has its requests fail. */
static void set_up(struct worker_set *set, uint32_t index, bool is_ejected)
{
    struct worker *worker = worker_set_at(set, index);

    (void)worker_handle(worker, WORKER_EVENT_ALIVE, WORKER_REASON_PROBE, 1);
    if (is_ejected)
        (void)worker_handle(worker, WORKER_EVENT_FAILED, WORKER_REASON_TRAFFIC, 2);
    cr_assert(eq(int, learn(set, index, "{\"data\":[{\"id\":\"m\"}]}"), 1));
}

Test(worker_set, traffic_takes_out_no_more_of_a_models_workers_than_the_floor_allows)
{
    static const struct {
        uint32_t up, ejected, panic_percent;
        bool may_eject, is_panic;
    } rows[] = {
        {1, 0, 50, false, false}, /* the last one is never taken */
        {2, 0, 50, true, false},  /* one of two */
        {1, 1, 50, false, false}, /* not the second */
        {3, 0, 50, true, false},
        {2, 1, 50, false, false},
        {4, 0, 50, true, false},
        {3, 1, 50, true, false},
        {2, 2, 50, false, false},
        {1, 2, 50, false, true}, /* probes took others: the ejected come back */
        {1, 3, 50, false, true},
        {10, 0, 0, false, false},
        {1, 1, 0, false, true},
        {1, 0, 100, true, false},
        {1, 5, 100, true, false},
        {9, 1, 20, true, false},
        {8, 2, 20, false, false},
    };

    for (size_t i = 0; i < array_count(rows); i++) {
        struct worker_set *set = set_with_workers(rows[i].up + rows[i].ejected + 2);
        for (uint32_t w = 0; w < rows[i].up + rows[i].ejected; w++)
            set_up(set, w, w >= rows[i].up);
        /* One that is DOWN does not count; nor does one of another model. */
        set_up(set, rows[i].up + rows[i].ejected, false);
        (void)worker_handle(worker_set_at(set, rows[i].up + rows[i].ejected), WORKER_EVENT_DEAD,
                            WORKER_REASON_PROBE, 3);

        bool may_eject = worker_set_may_eject(set, worker_set_at(set, 0), rows[i].panic_percent);

        cr_assert(eq(int, may_eject, rows[i].may_eject), "row %zu", i);
        cr_assert(eq(int, worker_set_is_panic(set, find(set, "m"), rows[i].panic_percent),
                     rows[i].is_panic),
                  "row %zu", i);
        worker_set_destroy(set);
    }
}

Test(worker_set, a_models_object_is_kept_with_all_it_says)
{
    struct worker_set *set = set_with_workers(1);

    int count = learn(set, 0,
                      "{ \"object\": \"list\", \"data\": [ { \"id\": \"a\\/b \\u00e9\", "
                      "\"created\": 1795965896, \"max_model_len\": 1024, \"x\": [1.0, 1e3, -0.1, "
                      "18446744073709551615, null, true, {\"k\": \"a\\\"\\n\\u0001\"}] } ] }");

    cr_assert(eq(int, count, 1));
    const struct model *model = find(set, "a/b \xc3\xa9");
    cr_assert(ne(ptr, (void *)model, NULL));
    cr_assert(eq(str, model->json,
                 "{\"id\":\"a/b \xc3\xa9\",\"created\":1795965896,\"max_model_len\":1024,"
                 "\"x\":[1.0,1000.0,-0.1,1.8446744073709552e+19,null,true,"
                 "{\"k\":\"a\\\"\\n\\u0001\"}]}"));
    worker_set_destroy(set);
}

Test(worker_set, the_list_of_a_real_vllm_is_understood)
{
    static char bytes[FIXTURE_BYTES_MAX];
    char path[512];
    snprintf(path, sizeof path, "%s/fixtures/vllm-0.32.0/http/models.resp", TESTS_DIR);
    FILE *file = fopen(path, "rb");
    cr_assert(ne(ptr, file, NULL));
    size_t len = fread(bytes, 1, sizeof bytes - 1, file);
    fclose(file);
    bytes[len] = '\0';
    const char *body = strstr(bytes, "\r\n\r\n") + 4;
    struct worker_set *set = set_with_workers(1);

    cr_assert(eq(int, learn(set, 0, body), 1));

    const struct model *model = find(set, "tiny");
    const char *object = strstr(body, "{\"id\"");
    cr_assert(eq(sz, strlen(model->json), strlen(object) - 2), "as vLLM wrote it, without ]}");
    cr_assert(eq(int, strncmp(model->json, object, strlen(model->json)), 0));
    worker_set_destroy(set);
}

Test(worker_set, a_model_with_a_parent_is_a_lora_until_its_list_says_otherwise)
{
    struct worker_set *set = set_with_workers(1);

    int count = learn(set, 0,
                      "{\"data\":[{\"id\":\"base\",\"parent\":null},{\"id\":\"none\"},"
                      "{\"id\":\"sql\",\"parent\":\"base\"}]}");

    cr_assert(eq(int, count, 3));
    cr_assert(not(find(set, "base")->is_lora));
    cr_assert(not(find(set, "none")->is_lora));
    cr_assert(find(set, "sql")->is_lora);
    cr_assert(eq(int, learn(set, 0, "{\"data\":[{\"id\":\"sql\"}]}"), 1));
    cr_assert(not(find(set, "sql")->is_lora));
    worker_set_destroy(set);
}

Test(worker_set, models_of_several_workers_are_merged_in_order_of_first_sight)
{
    struct worker_set *set = set_with_workers(3);

    cr_assert(eq(int, learn(set, 2, "{\"data\":[{\"id\":\"b\",\"n\":1},{\"id\":\"a\"}]}"), 2));
    cr_assert(eq(int, learn(set, 0, "{\"data\":[{\"id\":\"c\"},{\"id\":\"b\",\"n\":2}]}"), 2));

    cr_assert(eq(sz, worker_set_model_count(set), 3));
    cr_assert(eq(str, worker_set_model_at(set, 0)->id, "b"));
    cr_assert(eq(str, worker_set_model_at(set, 1)->id, "a"));
    cr_assert(eq(str, worker_set_model_at(set, 2)->id, "c"));
    const struct model *b = find(set, "b");
    cr_assert(eq(str, b->json, "{\"id\":\"b\",\"n\":1}"), "in the words of the first");
    cr_assert(eq(sz, b->worker_count, 2));
    cr_assert(worker_serves_model(worker_set_at(set, 0), b));
    cr_assert(not(worker_serves_model(worker_set_at(set, 1), b)));
    cr_assert(worker_serves_model(worker_set_at(set, 2), b));
    worker_set_destroy(set);
}

Test(worker_set, a_model_goes_when_nobody_lists_it_and_stays_while_its_workers_are_down)
{
    struct worker_set *set = set_with_workers(2);
    cr_assert(eq(int, learn(set, 0, "{\"data\":[{\"id\":\"a\",\"n\":1},{\"id\":\"b\"}]}"), 2));
    cr_assert(eq(int, learn(set, 1, "{\"data\":[{\"id\":\"a\",\"n\":2}]}"), 1));
    (void)worker_handle(worker_set_at(set, 0), WORKER_EVENT_ALIVE, WORKER_REASON_PROBE, 8);
    (void)worker_handle(worker_set_at(set, 0), WORKER_EVENT_DEAD, WORKER_REASON_PROBE, 9);
    cr_assert(eq(sz, worker_set_model_count(set), 2));

    cr_assert(eq(int, learn(set, 0, "{\"data\":[]}"), 0));

    cr_assert(eq(ptr, (void *)find(set, "b"), NULL));
    cr_assert(eq(sz, find(set, "a")->worker_count, 1));
    cr_assert(eq(int, learn(set, 1, "{\"data\":[{\"id\":\"a\",\"n\":3}]}"), 1));
    cr_assert(eq(str, find(set, "a")->json, "{\"id\":\"a\",\"n\":3}"),
              "worker 1 speaks for it since worker 0 does not");
    cr_assert(eq(int, learn(set, 1, "{\"data\":[{\"id\":\"c\"}]}"), 1));
    cr_assert(eq(sz, worker_set_model_count(set), 1));
    worker_set_destroy(set);
}

Test(worker_set, what_is_no_list_changes_nothing)
{
    static const char *const bodies[] = {
        "", "{", "null", "[]", "{}", "{\"data\":null}", "{\"data\":{\"id\":\"x\"}}", "<html>",
    };
    struct worker_set *set = set_with_workers(1);
    cr_assert(eq(int, learn(set, 0, "{\"data\":[{\"id\":\"a\"}]}"), 1));

    for (size_t i = 0; i < array_count(bodies); i++)
        cr_assert(eq(int, learn(set, 0, bodies[i]), -EINVAL), "'%s' was taken", bodies[i]);

    cr_assert(worker_serves_model(worker_set_at(set, 0), find(set, "a")));
    worker_set_destroy(set);
}

Test(worker_set, entries_without_a_usable_id_are_ignored_and_counted)
{
    struct worker_set *set = set_with_workers(1);

    int count = learn(set, 0,
                      "{\"data\":[{},{\"id\":7},{\"id\":\"\"},{\"id\":\"a\\u0000b\"},null,\"x\","
                      "{\"id\":\"good\"},{\"id\":\"good\"}]}");

    cr_assert(eq(int, count, 2));
    cr_assert(eq(sz, worker_set_model_count(set), 1));
    cr_assert(eq(sz, find(set, "good")->worker_count, 1));
    cr_assert(eq(u64, worker_set_ignored_model_count(set), 6));
    worker_set_destroy(set);
}

Test(worker_set, the_number_of_models_is_limited)
{
    static char body[64 << 10];
    size_t len = (size_t)snprintf(body, sizeof body, "{\"data\":[");
    struct worker_set *set = set_with_workers(1);
    for (int i = 0; i < MODEL_COUNT_MAX + 10; i++)
        len += (size_t)snprintf(body + len, sizeof body - len, "%s{\"id\":\"model-%d\"}",
                                i > 0 ? "," : "", i);
    snprintf(body + len, sizeof body - len, "]}");

    cr_assert(eq(int, learn(set, 0, body), MODEL_COUNT_MAX));

    cr_assert(eq(u64, worker_set_ignored_model_count(set), 10));
    worker_set_destroy(set);
}

Test(worker_set, near_models_come_nearest_first)
{
    const struct model *near[MODEL_NEAR_MAX];
    struct worker_set *set = set_with_workers(1);
    cr_assert(eq(int,
                 learn(set, 0,
                       "{\"data\":[{\"id\":\"qwen3-8b\"},{\"id\":\"qwen3-4b\"},{\"id\":\"qwen3\"},"
                       "{\"id\":\"Qwen/Qwen3-4B\"},{\"id\":\"tiny\"}]}"),
                 5));

    size_t count = worker_set_near_models(set, SLICE("Qwen3-4B"), near, MODEL_NEAR_MAX);

    cr_assert(eq(sz, count, 4));
    cr_assert(eq(str, near[0]->id, "qwen3-4b"));
    cr_assert(eq(str, near[1]->id, "Qwen/Qwen3-4B"));
    cr_assert(eq(str, near[2]->id, "qwen3-8b"));
    cr_assert(eq(str, near[3]->id, "qwen3"));
    cr_assert(eq(sz, worker_set_near_models(set, SLICE("Qwen3-4B"), near, 1), 1));
    cr_assert(eq(str, near[0]->id, "qwen3-4b"), "the nearest, also when it comes late");
    cr_assert(eq(sz, worker_set_near_models(set, SLICE("Qwen3-4B"), near, 0), 0));
    cr_assert(eq(sz, worker_set_near_models(set, SLICE("gpt-4o"), near, MODEL_NEAR_MAX), 0));
    worker_set_destroy(set);
}

/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/engine_spec.h"

#include "tests/support/leak_check.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <string.h>

static struct engine_spec specs[ENGINE_WORKER_COUNT_MAX];
static const char *option;
static char why[ENGINE_SPEC_WHY_BYTES];

#define LIST(...)                                                                                  \
    ((struct option_list){(const char *[]){__VA_ARGS__},                                           \
                          sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *)})

TestSuite(engine_spec, .fini = leak_check);

Test(engine_spec, an_engine_is_a_worker_of_the_name_that_routers_give_it)
{
    struct engine_lists options = {.engine = LIST("http://LocalHost:8000"),
                                   .kv_events = LIST("tcp://127.0.0.1:5557")};

    cr_assert(eq(int, engine_specs_make(&options, specs, &option, why), 1));

    cr_assert(eq(str, specs[0].name, "http://localhost:8000"));
    cr_assert(eq(str, specs[0].events, "tcp://127.0.0.1:5557"));
    cr_assert(eq(str, specs[0].replay, ""));
}

Test(engine_spec, lists_belong_together_by_their_order)
{
    struct engine_lists options = {
        .engine = LIST("http://127.0.0.1:8000", "http://127.0.0.1:8001"),
        .advertise = LIST("http://10.0.0.1:80", "http://10.0.0.1:81"),
        .kv_events = LIST("tcp://127.0.0.1:1", "ipc:///run/events"),
        .kv_replay = LIST("tcp://127.0.0.1:2", "tcp://127.0.0.1:4"),
    };

    cr_assert(eq(int, engine_specs_make(&options, specs, &option, why), 2));

    cr_assert(eq(str, specs[1].name, "http://10.0.0.1:81"));
    cr_assert(eq(str, specs[1].url.authority, "127.0.0.1:8001"));
    cr_assert(eq(str, specs[1].events, "ipc:///run/events"));
    cr_assert(eq(str, specs[1].replay, "tcp://127.0.0.1:4"));
}

Test(engine_spec, ranks_are_workers_whose_ports_follow_each_other)
{
    struct engine_lists options = {.engine = LIST("http://127.0.0.1:8000#dp=3"),
                                   .advertise = LIST("http://10.0.0.1:8000"),
                                   .kv_events = LIST("tcp://127.0.0.1:5557"),
                                   .kv_replay = LIST("tcp://[::1]:6000")};

    cr_assert(eq(int, engine_specs_make(&options, specs, &option, why), 3));

    cr_assert(eq(str, specs[0].name, "http://10.0.0.1:8000#0"));
    cr_assert(eq(str, specs[2].name, "http://10.0.0.1:8000#2"));
    cr_assert(eq(str, specs[2].events, "tcp://127.0.0.1:5559"));
    cr_assert(eq(str, specs[2].replay, "tcp://[::1]:6002"));
    cr_assert(eq(u32, specs[2].rank, 2));
}

Test(engine_spec, what_does_not_fit_together_names_its_option)
{
    const struct {
        const char *option;
        struct engine_lists options;
    } cases[] = {
        {"engine", {.kv_events = LIST("tcp://a:1")}},
        {"kv-events", {.engine = LIST("http://a:1")}},
        {"kv-events", {.engine = LIST("http://a:1", "http://a:2"), .kv_events = LIST("tcp://a:1")}},
        {"kv-replay",
         {.engine = LIST("http://a:1", "http://a:2"),
          .kv_events = LIST("tcp://a:1", "tcp://a:2"),
          .kv_replay = LIST("tcp://a:1")}},
        {"engine", {.engine = LIST("dns://a:1"), .kv_events = LIST("tcp://a:1")}},
        {"engine",
         {.engine = LIST("http://a:1", "http://a:1"), .kv_events = LIST("tcp://a:1", "tcp://a:2")}},
        {"advertise",
         {.engine = LIST("http://a:1", "http://a:2"),
          .advertise = LIST("http://b:1", "http://b:1"),
          .kv_events = LIST("tcp://a:1", "tcp://a:2")}},
        {"advertise",
         {.engine = LIST("http://a:1#dp=2"),
          .advertise = LIST("http://b:1#dp=4"),
          .kv_events = LIST("tcp://a:1")}},
        {"kv-events", {.engine = LIST("http://a:1#dp=2"), .kv_events = LIST("ipc:///a")}},
        {"kv-events", {.engine = LIST("http://a:1#dp=2"), .kv_events = LIST("tcp://a:65535")}},
    };

    for (size_t i = 0; i < array_count(cases); i++) {
        option = "";
        cr_assert(eq(int, engine_specs_make(&cases[i].options, specs, &option, why), -EINVAL),
                  "case %zu", i);
        cr_assert(strcmp(option, cases[i].option) == 0, "case %zu: %s", i, option);
    }
}

Test(engine_spec, where_events_come_from_is_a_place_to_connect_to)
{
    static const struct {
        const char *text;
        int status;
    } cases[] = {
        {"tcp://127.0.0.1:5557", 0}, {"tcp://[::1]:5557", 0},       {"ipc:///run/a", 0},
        {"tcp://*:5557", -EINVAL},   {"tcp://host", -EINVAL},       {"tcp://host:0", -EINVAL},
        {"tcp://host:x", -EINVAL},   {"tcp://host:65536", -EINVAL}, {"ipc://", -EINVAL},
        {"http://a:1", -EINVAL},     {"tcp://host:1 ", -EINVAL},    {"", -EINVAL},
    };

    for (size_t i = 0; i < array_count(cases); i++)
        cr_assert(
            eq(int, engine_endpoint_check(slice_of_string(cases[i].text), why), cases[i].status),
            "%s", cases[i].text);
}

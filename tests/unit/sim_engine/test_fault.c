/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/fault.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <stdio.h>

#include "tests/support/leak_check.h"

static struct fault parse(const char *spec)
{
    struct parse_error error = {0};
    struct fault fault;
    int status = fault_parse(slice_of_string(spec), &fault, &error);

    cr_assert(eq(int, status, 0), "%s: %s", spec, error.message);
    return fault;
}

static size_t hits_of(const char *spec, size_t count, const char *target, bool is_stream)
{
    struct fault_rule rule = {.fault = parse(spec), .random = 1};
    size_t hits = 0;

    for (size_t i = 0; i < count; i++)
        hits += fault_rule_hits(&rule, slice_of_string(target), is_stream);
    return hits;
}

TestSuite(fault, .fini = leak_check);

Test(fault, one_engine_of_several_is_named_by_its_port)
{
    struct parse_error error;
    struct fault fault;

    cr_assert(eq(u16, parse("hang,port=8001").port, 8001));
    cr_assert(eq(u16, parse("hang").port, 0));
    cr_assert(eq(int, fault_parse(SLICE("hang,port=0"), &fault, &error), -EINVAL));
    cr_assert(eq(int, fault_parse(SLICE("hang,port=65536"), &fault, &error), -EINVAL));
}

Test(fault, every_kind_parses_by_its_name)
{
    for (int kind = 0; kind < FAULT_KIND_COUNT; kind++) {
        struct parse_error error;
        struct fault fault;
        char spec[64];

        snprintf(spec, sizeof spec, "%s", fault_name((enum fault_kind)kind));
        if (fault_parse(slice_of_string(spec), &fault, &error) < 0) /* it wants a number */
            snprintf(spec, sizeof spec, "%s=500", fault_name((enum fault_kind)kind));

        cr_assert(eq(int, parse(spec).kind, kind));
        cr_assert(strstr(fault_help(), fault_name((enum fault_kind)kind)) != NULL);
    }
}

Test(fault, all_conditions_are_read)
{
    struct fault fault = parse("die_at_event=3,how=rst,path=/v1/chat,every=5,when=stream");

    cr_assert(eq(int, fault.kind, FAULT_DIE_AT_EVENT));
    cr_assert(eq(u64, fault.arg, 3));
    cr_assert(fault.by_reset);
    cr_assert(eq(str, fault.path, "/v1/chat"));
    cr_assert(eq(int, fault.which, FAULT_EVERY));
    cr_assert(eq(u64, fault.number, 5));
    cr_assert(eq(int, fault.when, FAULT_WHEN_STREAM));
}

Test(fault, what_is_wrong_is_said_with_its_place)
{
    static const struct {
        const char *spec;
        size_t offset;
        const char *word;
    } cases[] = {
        {"", 0, "no fault of that name"},
        {"sleep", 0, "no fault of that name"},
        {"hang=3", 0, "no argument"},
        {"slow", 0, "whole number"},
        {"slow=fast", 0, "whole number"},
        {"slow=-1", 0, "whole number"},
        {"slow=9999999999999", 0, "whole number"},
        {"status=200", 0, "400, 429, 500 or 503"},
        {"hang,", 5, "conditions are"},
        {"hang,sometimes", 5, "conditions are"},
        {"hang,every=0", 5, "from 1"},
        {"hang,p=2", 5, "from 0 to 1"},
        {"hang,p=", 5, "from 0 to 1"},
        {"hang,every=2,nth=3", 13, "Only one"},
        {"hang,path=v1", 5, "begin with /"},
        {"hang,when=ever", 5, "stream or plain"},
        {"reset,when=stream", 0, "no meaning"},
        {"die_at_byte=1,how=hard", 14, "fin or rst"},
    };

    for (size_t i = 0; i < array_count(cases); i++) {
        struct parse_error error = {0};
        struct fault fault;

        int status = fault_parse(slice_of_string(cases[i].spec), &fault, &error);

        cr_assert(eq(int, status, -EINVAL), "%s", cases[i].spec);
        cr_assert(eq(sz, error.offset, cases[i].offset), "%s", cases[i].spec);
        cr_assert(strstr(error.message, cases[i].word) != NULL, "%s: %s", cases[i].spec,
                  error.message);
    }
}

Test(fault, a_rule_hits_the_requests_it_names_and_no_others)
{
    cr_assert(eq(sz, hits_of("hang", 10, "/health", false), 10));
    cr_assert(eq(sz, hits_of("hang,nth=4", 10, "/health", false), 1));
    cr_assert(eq(sz, hits_of("hang,every=4", 10, "/health", false), 2));
    cr_assert(eq(sz, hits_of("hang,p=0", 10, "/health", false), 0));
    cr_assert(eq(sz, hits_of("hang,p=1", 10, "/health", false), 10));
    cr_assert(eq(sz, hits_of("hang,path=/v1/", 10, "/health", false), 0));
    cr_assert(eq(sz, hits_of("hang,path=/v1/", 10, "/v1/models", false), 10));
    cr_assert(eq(sz, hits_of("hang,when=stream", 10, "/v1/completions", false), 0));
    cr_assert(eq(sz, hits_of("hang,when=stream", 10, "/v1/completions", true), 10));
    cr_assert(eq(sz, hits_of("hang,when=plain", 10, "/v1/completions", true), 0));
}

Test(fault, a_share_of_requests_is_hit_at_random)
{
    size_t hits = hits_of("hang,p=0.1", 10000, "/health", false);

    cr_assert(gt(sz, hits, 900));
    cr_assert(lt(sz, hits, 1100));
}

Test(fault, batches_of_events_are_hit_by_number_and_share_alone)
{
    static const char *const wrong[] = {"kv_drop,path=/v1", "kv_drop,when=plain",
                                        "kv_drop_hard,how=rst", "kv_no_replay,every=2"};
    struct fault_rule rule = {.fault = parse("kv_drop,every=4")};
    struct parse_error error;
    struct fault fault;
    size_t hits = 0;

    for (size_t i = 0; i < 10; i++)
        hits += fault_rule_hits_inner(&rule);

    cr_assert(eq(sz, hits, 2));
    for (size_t i = 0; i < array_count(wrong); i++)
        cr_assert(eq(int, fault_parse(slice_of_string(wrong[i]), &fault, &error), -EINVAL), "%s",
                  wrong[i]);
}

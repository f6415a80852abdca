/* SPDX-License-Identifier: Apache-2.0 */

#include "router/doubts.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <stdio.h>

#include "tests/support/leak_check.h"

static const struct machine plain_machine = {.memory_bytes = 8ull << 30,
                                             .descriptor_count_max = 20000};
static const struct machine small_machine = {.memory_bytes = 400 << 20,
                                             .descriptor_count_max = 4096};

/* Names of the options that are doubted when the router is given these flags, joined by a bar. */
static char *doubted(const char *flag, const char *value, const struct machine *machine)
{
    static char names[512];
    struct router_option_table table;
    struct router_options options;
    struct option_set set;
    const struct doubt *doubts[DOUBT_COUNT_MAX];
    const char *const argv[] = {"samovar-router", "--worker-urls", "http://a:1", flag, value};
    size_t len = 0;

    router_option_table_init(&table, NULL);
    cr_assert(eq(int,
                 options_parse(&set, &table, &options,
                               (struct options_input){flag == NULL ? 3 : 5, argv,
                                                      (const char *const[]){NULL}}),
                 EXIT_CODE_OK));
    names[0] = '\0';
    for (size_t i = 0, count = doubts_find(&options, machine, doubts); i < count; i++) {
        cr_assert(ne(ptr,
                     (void *)option_table_find(&table.table, slice_of_string(doubts[i]->option)),
                     NULL));
        len += (size_t)snprintf(names + len, sizeof names - len, "%s%s", i == 0 ? "" : "|",
                                doubts[i]->option);
    }
    option_set_release(&set);
    return names;
}

TestSuite(doubts, .fini = leak_check);

Test(doubts, the_defaults_give_none)
{
    cr_assert(eq(str, doubted(NULL, NULL, &plain_machine), ""));
}

Test(doubts, a_small_machine_makes_defaults_doubtful)
{
    cr_assert(eq(str, doubted(NULL, NULL, &small_machine),
                 "body-bytes-max|client-count-max|residency-bytes-max"));
}

Test(doubts, each_has_a_limit_that_is_still_fine)
{
    static const struct {
        const char *flag, *fine, *doubtful;
    } rows[] = {
        {"--admin-host", "127.0.0.2", "0.0.0.0"},
        {"--admin-host", "localhost", "10.0.0.1"},
        {"--admin-host", "::1", "::"},
        {"--body-bytes-max", "256MiB", "257MiB"},
        {"--client-count-max", "19936", "19937"},
        {"--client-header-ms", "30s", "31s"},
        {"--connect-ms", "599s", "600s"},
        {"--cors-origins", "https://a", "*"},
        {"--drain-ms", "5s", "4s"},
        {"--keepalive-ms", "119s", "120s"},
        {"--probe-interval-ms", "100ms", "99ms"},
        {"--probe-interval-ms", "30s", "31s"},
        {"--residency-bytes-max", "4GiB", "5GiB"},
        {"--seed", "0", "1"},
        {"--upstream-header-ms", "10s", "9s"},
        {"--upstream-idle-ms", "5s", "4s"},
        {"--worker-idle-ms", "4999ms", "5s"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cr_assert(eq(str, doubted(rows[i].flag, rows[i].fine, &plain_machine), ""), "%s %s",
                  rows[i].flag, rows[i].fine);
        cr_assert(eq(str, doubted(rows[i].flag, rows[i].doubtful, &plain_machine),
                     (char *)(uintptr_t)rows[i].flag + 2));
    }
}

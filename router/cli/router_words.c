/* SPDX-License-Identifier: Apache-2.0 */

#include "router/cli/router_words.h"

#include <assert.h>
#include <stdio.h>
#include <unistd.h>

int router_words_init(struct router_words *words, const char *command, int argc)
{
    *words = (struct router_words){.words = {command}, .count = 1, .is_file_due = true};
    if (argc <= ROUTER_WORD_COUNT_MAX)
        return 0;
    fprintf(stderr, "%s: more than %d arguments\n", command, ROUTER_WORD_COUNT_MAX);
    return -1;
}

void router_words_add(struct router_words *words, const char *word)
{
    assert(words->count + 2 <= (int)array_count(words->words));

    if (words->is_file_due && word[0] != '-')
        words->words[words->count++] = "--config";
    words->is_file_due = false;
    words->words[words->count++] = word;
}

int router_words_read(const struct router_words *words, struct router_reading *reading)
{
    policy_names(reading->policies);
    router_option_table_init(&reading->table, reading->policies);
    return options_parse(
        &reading->set, &reading->table, &reading->options,
        (struct options_input){words->count, words->words, (const char *const *)environ});
}

/* SPDX-License-Identifier: Apache-2.0 */

#include "router/config.h"

#include <assert.h>
#include <errno.h>

#include "backends/runtime/log.h"
#include "backends/runtime/machine.h"
#include "router/doubts.h"

/*
 * DESIGN
 *
 * A reload reads everything into a set of its own, by the same code as the start did, so that what
 * `samovar check` passes is what a reload takes. Only a set without a mistake becomes a candidate;
 * two sets take turns, so that what the app still borrows of the one before stays valid while it
 * changes over.
 *
 * A value that needs a restart is replaced in the candidate by the one in force: what the set in
 * force says is always true, and the warning comes again with each reload until the restart.
 */

enum { VALUE_BYTES_MAX = 512 /* of a value in the log; a list of workers may be longer */ };

static struct config_version *candidate_of(struct config *config)
{
    return &config->versions[1 - config->in_force];
}

int config_init(struct config *config, const char *const *policy_names, struct options_input input)
{
    struct config_version *version = &config->versions[0];

    memset(config, 0, sizeof *config);
    router_option_table_init(&config->table, policy_names);
    config->input = input;
    return options_parse(&version->set, &config->table, &version->options, input);
}

const struct router_options *config_options(const struct config *config)
{
    return &config->versions[config->in_force].options;
}

const struct option_set *config_set(const struct config *config)
{
    return &config->versions[config->in_force].set;
}

const struct router_options *config_candidate(const struct config *config)
{
    assert(config->has_candidate);

    return &config->versions[1 - config->in_force].options;
}

static void log_errors(const struct option_set *set)
{
    size_t count = set->flag_error_count + set->config_error_count;

    for (size_t i = 0; i < set->error_count; i++)
        LOG(LOG_ERROR, "config_error", log_text("where", set->errors[i].where),
            log_text("what", set->errors[i].what), log_text("advice", set->errors[i].advice));
    LOG(LOG_ERROR, "config_refused", log_u64("errors", count),
        log_text("effect", "nothing changed"));
}

/* What a set says of one option, as log fields: texts that live as long as this. */
struct spelled {
    struct buf value, origin;
};

/* A value that is too long to write is cut; to show nothing of it would help less. */
static void spell(struct spelled *spelled, const struct option_set *set,
                  const struct option *option)
{
    buf_init(&spelled->value, 1 << 20);
    buf_init(&spelled->origin, VALUE_BYTES_MAX);
    (void)!option_set_write_value(set, option, &spelled->value);
    (void)!option_set_write_origin(set, option, &spelled->origin);
}

static void unspell(struct spelled *spelled)
{
    buf_release(&spelled->value);
    buf_release(&spelled->origin);
}

static struct log_field spelled_value(const char *key, const struct spelled *spelled)
{
    struct slice value = buf_slice(&spelled->value);

    return log_slice(key,
                     value.len <= VALUE_BYTES_MAX ? value : slice_of(value.ptr, VALUE_BYTES_MAX));
}

static void log_change(const struct option_set *old_set, const struct option_set *new_set,
                       const struct option *option)
{
    struct spelled before, after;
    bool is_applied = option->phase == OPTION_RELOAD;

    spell(&before, old_set, option);
    spell(&after, new_set, option);
    LOG(is_applied ? LOG_INFO : LOG_WARN, is_applied ? "option_changed" : "option_needs_restart",
        log_text("option", option->name), spelled_value(is_applied ? "old" : "in_force", &before),
        spelled_value(is_applied ? "new" : "wanted", &after),
        log_slice("origin", buf_slice(&after.origin)));
    unspell(&before);
    unspell(&after);
}

/* Logs what cannot change now, and takes it out of the candidate. */
static void hold_back(struct config *config)
{
    struct config_version *candidate = candidate_of(config);

    for (size_t i = 0; i < config->table.table.count; i++) {
        const struct option *option = &config->table.options[i];

        if (option->phase != OPTION_BOOT ||
            option_set_is_same(config_set(config), &candidate->set, option))
            continue;
        log_change(config_set(config), &candidate->set, option);
        option_set_carry(&candidate->set, config_set(config), option);
    }
}

int config_prepare(struct config *config)
{
    struct config_version *candidate = candidate_of(config);

    assert(!config->has_candidate);

    option_set_release(&candidate->set);
    if (options_parse(&candidate->set, &config->table, &candidate->options, config->input) !=
        EXIT_CODE_OK) {
        log_errors(&candidate->set);
        option_set_release(&candidate->set);
        return -EINVAL;
    }
    config->has_candidate = true;
    hold_back(config);
    return 0;
}

size_t config_commit(struct config *config)
{
    struct config_version *candidate = candidate_of(config);
    size_t count = 0;

    assert(config->has_candidate);

    for (size_t i = 0; i < config->table.table.count; i++) {
        const struct option *option = &config->table.options[i];

        if (option->phase != OPTION_RELOAD ||
            option_set_is_same(config_set(config), &candidate->set, option))
            continue;
        log_change(config_set(config), &candidate->set, option);
        count++;
    }
    config->in_force = 1 - config->in_force;
    config->has_candidate = false;
    return count;
}

void config_discard(struct config *config, const char *option, const char *why)
{
    struct option_set *set = &candidate_of(config)->set;

    assert(config->has_candidate);

    option_set_refuse(set, option, why, "");
    log_errors(set);
    option_set_release(set);
    config->has_candidate = false;
}

void config_log_doubts(const struct config *config)
{
    const struct doubt *doubts[DOUBT_COUNT_MAX];
    struct machine machine = machine_read();
    size_t count = doubts_find(config_options(config), &machine, doubts);

    for (size_t i = 0; i < count; i++) {
        const struct option *option =
            option_table_find(&config->table.table, slice_of_string(doubts[i]->option));
        struct spelled spelled;

        spell(&spelled, config_set(config), option);
        LOG(LOG_WARN, "option_doubtful", log_text("option", option->name),
            spelled_value("value", &spelled), log_slice("origin", buf_slice(&spelled.origin)),
            log_text("why", doubts[i]->why), log_text("advice", doubts[i]->advice));
        unspell(&spelled);
    }
}

void config_release(struct config *config)
{
    option_set_release(&config->versions[0].set);
    option_set_release(&config->versions[1].set);
}

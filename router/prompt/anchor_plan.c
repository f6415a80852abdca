/* SPDX-License-Identifier: Apache-2.0 */

#include "router/prompt/anchor_plan.h"

#include <assert.h>
#include <errno.h>

#include "router/prompt/value_digest.h"

/*
 * DESIGN
 *
 * An engine's /tokenize takes the bodies of chat and completions as they are: what it does not know
 * it passes over. So it is exact as long as a body says nothing that generation reads and /tokenize
 * does not. A difference in the number of tokens would be noticed (usage says it too); one in the
 * ids alone would not, as of reasoning_effort "low" and "high". Therefore the list below: whoever
 * names one of these is not anchored.
 *
 * The template's tail ("<|im_start|>assistant\n") stands behind the text that was hashed. How long
 * it is depends on the template and its arguments, not on the conversation.
 */
static const struct slice odd_keys[] = {
    {"documents", 9},
    {"enable_thinking", 15},
    {"functions", 9},
    {"kv_transfer_params", 18}, /* may carry the prompt's ids, which are used then */
    {"lora_name", 9},
    {"lora_path", 9},
    {"lora_request", 12},
    {"prompt_embeds", 13},
    {"reasoning", 9},
    {"reasoning_effort", 16},
    {"safe_prompt", 11},
    {"suffix", 6},
    {"thinking", 8},
    {"truncate_prompt_tokens", 22},
};

static const char *const outcome_names[] = {
#define OUTCOME_NAME(constant, name) [constant] = name,
    ANCHOR_OUTCOME_ROWS(OUTCOME_NAME)
#undef OUTCOME_NAME
};

const char *anchor_outcome_name(enum anchor_outcome outcome)
{
    assert(outcome < ANCHOR_OUTCOME_COUNT);

    return outcome_names[outcome];
}

static bool is_odd(struct slice key)
{
    for (size_t i = 0; i < array_count(odd_keys); i++) {
        if (slice_eq(odd_keys[i], key))
            return true;
    }
    return false;
}

static bool is_false(struct json_value value)
{
    return json_type(value) == JSON_BOOL && !json_bool(value);
}

/* What the members of a body say. */
struct findings {
    bool is_odd;
    bool has_tools;
    bool drops_tools; /* tool_choice none: some engines print no tools then */
    bool has_echo;
    bool has_generation_prompt; /* the member is there, whatever it says */
    bool is_open;               /* nothing is put behind the text */
    uint64_t template_sum;
    struct slice salt;
};

static void find_in(const uint8_t *secret, struct json_member member, struct findings *found)
{
    bool is_empty = value_is_empty(member.value);

    if (is_odd(member.key))
        found->is_odd |= !is_empty;
    else if (slice_eq(member.key, SLICE("tools")))
        found->has_tools = !is_empty;
    else if (slice_eq(member.key, SLICE("tool_choice")))
        found->drops_tools = slice_eq(json_string(member.value), SLICE("none"));
    else if (slice_eq(member.key, SLICE("echo")))
        found->has_echo = json_bool(member.value);
    else if (slice_eq(member.key, SLICE("cache_salt")))
        found->salt = json_string(member.value);
    else if (slice_eq(member.key, SLICE("continue_final_message")))
        found->is_open |= json_bool(member.value);
    else if (slice_eq(member.key, SLICE("add_generation_prompt"))) {
        found->has_generation_prompt = true;
        found->is_open |= is_false(member.value);
    } else if ((slice_eq(member.key, SLICE("chat_template")) ||
                slice_eq(member.key, SLICE("chat_template_kwargs"))) &&
               !is_empty)
        found->template_sum += member_digest(secret, member);
}

static enum anchor_outcome why_not(const struct api_request *request,
                                   const struct prompt_blocks *prompt, const struct findings *found)
{
    if (request->api != API_CHAT && request->api != API_COMPLETIONS)
        return ANCHOR_API;
    if (request->choice_count != 1 || request->prompt_count != 1 || found->has_echo)
        return ANCHOR_SHAPE;
    if (prompt->has_media)
        return ANCHOR_MEDIA;
    if (found->is_odd || (found->has_tools && found->drops_tools))
        return ANCHOR_FIELDS;
    return ANCHOR_POSTED; /* nothing is in the way */
}

int anchor_plan_make(const uint8_t *secret, const struct api_request *request,
                     const struct prompt_blocks *prompt, struct arena *arena,
                     struct anchor_plan *plan)
{
    struct json_iterator members = json_iterate(request->root);
    struct findings found = {0};
    struct json_member member;

    while (json_next_member(&members, &member))
        find_in(secret, member, &found);
    *plan = (struct anchor_plan){.why_not = why_not(request, prompt, &found)};
    if (plan->why_not != ANCHOR_POSTED)
        return 0;
    plan->source = request->is_token_prompt ? ANCHOR_SOURCE_IDS : ANCHOR_SOURCE_TOKENIZE;
    if (request->api == API_CHAT && !found.is_open) {
        plan->template_name = found.template_sum | 1;
        plan->may_ask_tail = !found.has_generation_prompt;
    }
    if (found.salt.len == 0)
        return 0;
    plan->salt = arena_copy(arena, found.salt);
    return plan->salt.ptr != NULL ? 0 : -ENOMEM;
}

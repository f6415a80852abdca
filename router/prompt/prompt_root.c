/* SPDX-License-Identifier: Apache-2.0 */

#include "router/prompt/prompt_root.h"

#include "hashing/digest.h"
#include "router/prompt/value_digest.h"

/*
 * DESIGN
 *
 * The root holds whatever may change the prompt from its first byte on:
 *   - api family, model (another model, or LoRA by name, shares nothing)
 *   - every member named in root_keys[], by digest of its whole value, unknown members of
 *     chat_template_kwargs included: templates read what they like from there
 *   - tool_choice, as far as it is "none" beside tools: some engines leave the tools out then; any
 *     other choice prints all of them
 * Not in it: sampling, n, stop, logit_bias, response_format, stream, user, metadata,
 * prompt_cache_key, priority and the like, which decide what is answered; add_generation_prompt and
 * continue_final_message, which change only what follows the last message; fields nobody knows,
 * as engines ignore those.
 *
 * Members are added up as member_digest() gives them, so their order in the body does not matter.
 */

/* Fields of the root's digest. */
enum { ROOT_VERSION, ROOT_STREAM, ROOT_MODEL, ROOT_MEMBERS, ROOT_DROPS_TOOLS };

static const struct slice root_keys[] = {
    {"add_special_tokens", 18},
    {"cache_salt", 10}, /* a tenant's wall */
    {"chat_template", 13},
    {"chat_template_kwargs", 20},
    {"documents", 9},        /* printed first by templates for retrieval */
    {"enable_thinking", 15}, /* template arguments that some engines take at the top */
    {"functions", 9},        /* tools of old */
    {"lora_name", 9},
    {"lora_path", 9},
    {"lora_request", 12},
    {"media_io_kwargs", 15}, /* how images and video become tokens */
    {"mm_processor_kwargs", 19},
    {"prompt_embeds", 13},
    {"reasoning", 9},
    {"reasoning_effort", 16}, /* printed into the system message */
    {"safe_prompt", 11},      /* puts a system message in front */
    {"suffix", 6},            /* fill-in-the-middle prints it first */
    {"thinking", 8},
    {"truncate_prompt_tokens", 22}, /* cuts the front away */
};

static bool is_root_key(struct slice key)
{
    for (size_t i = 0; i < array_count(root_keys); i++)
        if (slice_eq(root_keys[i], key))
            return true;
    return false;
}

uint64_t prompt_root(const uint8_t *secret, const struct api_request *request)
{
    const bool is_chat = request->api == API_CHAT;
    const uint64_t stream = is_chat ? 'C' : request->is_token_prompt ? 'I' : 'T';
    struct json_iterator members = json_iterate(request->root);
    bool has_tools = false, drops_tools = false;
    struct json_member member;
    struct digest root;
    uint64_t sum = 0;

    while (json_next_member(&members, &member)) {
        if (is_root_key(member.key)) {
            sum += value_is_empty(member.value) ? 0 : member_digest(secret, member);
        } else if (slice_eq(member.key, SLICE("tools"))) {
            has_tools = !value_is_empty(member.value);
        } else if (slice_eq(member.key, SLICE("tool_choice"))) {
            drops_tools = slice_eq(json_string(member.value), SLICE("none"));
        }
    }
    digest_begin(&root, secret, DIGEST_ROOT);
    digest_field_u64(&root, ROOT_VERSION, PROMPT_STREAM_VERSION);
    digest_field_u64(&root, ROOT_STREAM, stream);
    digest_field(&root, ROOT_MODEL, request->model.ptr, request->model.len);
    digest_field_u64(&root, ROOT_MEMBERS, sum);
    digest_field_u64(&root, ROOT_DROPS_TOOLS, has_tools && drops_tools);
    return digest_end(&root);
}

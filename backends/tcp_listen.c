/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/tcp_listen.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>

#include "backends/runtime/log.h"

enum { BACKLOG = 1024, ADDRESS_BYTES_MAX = 64 };

/* The first address of host. */
static int resolve(struct tcp_listen_config config, struct sockaddr_storage *address,
                   char why[TCP_LISTEN_WHY_BYTES])
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    struct addrinfo *found = NULL;
    char port[8];
    int status;

    snprintf(port, sizeof port, "%u", config.port);
    status = getaddrinfo(config.host, port, &hints, &found);
    if (status != 0) {
        snprintf(why, TCP_LISTEN_WHY_BYTES, "cannot listen on '%s': %s", config.host,
                 gai_strerror(status));
        return -EADDRNOTAVAIL;
    }
    memcpy(address, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    return 0;
}

static void log_address(const uv_tcp_t *tcp, const char *event)
{
    struct sockaddr_storage bound;
    char address[ADDRESS_BYTES_MAX] = "";
    int len = sizeof bound;
    uint16_t port = 0;

    if (uv_tcp_getsockname(tcp, (struct sockaddr *)&bound, &len) < 0)
        return;
    if (bound.ss_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)&bound;

        uv_ip6_name(in6, address, sizeof address);
        port = ntohs(in6->sin6_port);
    } else {
        const struct sockaddr_in *in4 = (const struct sockaddr_in *)&bound;

        uv_ip4_name(in4, address, sizeof address);
        port = ntohs(in4->sin_port);
    }
    LOG(LOG_INFO, event, log_text("address", address), log_u64("port", port));
}

int tcp_listen(uv_tcp_t *tcp, uv_loop_t *loop, struct tcp_listen_config config,
               uv_connection_cb on_connection, char why[TCP_LISTEN_WHY_BYTES])
{
    struct sockaddr_storage address;
    int status = resolve(config, &address, why);

    if (status < 0)
        return status;
    (void)uv_tcp_init(loop, tcp); /* opens nothing yet */
    status = uv_tcp_bind(tcp, (const struct sockaddr *)&address, 0);
    if (status == 0)
        status = uv_listen((uv_stream_t *)tcp, BACKLOG, on_connection);
    if (status < 0) {
        snprintf(why, TCP_LISTEN_WHY_BYTES, "cannot listen on %s port %u: %s%s", config.host,
                 config.port, uv_strerror(status),
                 status == UV_EADDRINUSE ? "; another process has it: choose another port" : "");
        uv_close((uv_handle_t *)tcp, NULL);
        return status;
    }
    log_address(tcp, config.event);
    return 0;
}

bool tcp_is_loopback(const char *host)
{
    return strncmp(host, "127.", 4) == 0 || strcmp(host, "localhost") == 0 ||
           strcmp(host, "::1") == 0 || strcmp(host, "[::1]") == 0;
}

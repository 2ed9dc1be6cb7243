/* A mock of vLLM for the benchmark: one thread, epoll, HTTP/1.1 on 127.0.0.1.
 *
 *     backend MODEL...   binds a free port, prints it on a line of its own, serves until killed
 *
 * POST anything: the body's "model" says what is answered. m-N-P or m-N-P-F: N tokens, P milliseconds between
 * events (0: as fast as the socket takes them), F a fault: 1 a status 500, 2 a stream cut after half its tokens.
 *     "stream":true    a role chunk, N content chunks, a finish chunk, a usage chunk if the body asks for it
 *                      ("include_usage"), [DONE]; one HTTP chunk and one write() an event, as vLLM under
 *                      uvicorn writes them; the last three follow each other without a pause
 *     otherwise        one chat completion of 682 bytes
 * GET anything: the list of these models, so that probes for health and models succeed.
 *
 * The shapes are those of vLLM 0.11 to 0.32; about 250 bytes an event. There is no error handling for
 * what the load generator does not send: it serves a benchmark, not clients.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { FDS_MAX = 65536, WHEEL_SLOTS = 4096, READ_BYTES = 64 * 1024, EVENT_BYTES_MAX = 1024, MODELS_MAX = 16 };
enum event_kind { ROLE, CONTENT, FINISH, USAGE, DONE, EVENT_KINDS };
enum list { NO_LIST, FAST, WHEEL };
enum fault { NO_FAULT, STATUS_500, CUT };

typedef struct connection {
    int fd;
    char *request;                       /* what was read and not yet answered */
    int length, capacity, needed;        /* needed: bytes of the whole request, once its head was read */
    int streaming, tokens, next, pace_ms, usage, fault;
    char *unsent;                        /* what the socket did not take */
    int unsent_length, unsent_offset, waits_for_room;
    long due_ms;
    enum list list;
    struct connection *before, *after;
} connection;

static connection *connections[FDS_MAX];
static connection fast;                  /* head of the list of streams without a pace */
static connection wheel[WHEEL_SLOTS];    /* heads of the lists of paced streams, by due millisecond */
static int epoll, paced;
static long now_ms, wheel_ms;

static char completion[2048], failure[512], models[8192], event[EVENT_KINDS][EVENT_BYTES_MAX];
static int completion_length, failure_length, models_length, event_length[EVENT_KINDS];

#define ID "chatcmpl-4f0c2a9b7d6e41e88a3b5c1d2e3f4a5b"
#define SERVED "meta-llama/Llama-3.1-8B-Instruct"
#define COMMON "\"created\":1795800000,\"model\":\"" SERVED "\","
#define CHUNK "data: {\"id\":\"" ID "\",\"object\":\"chat.completion.chunk\"," COMMON
#define DATE "date: Fri, 27 Nov 2026 22:00:00 GMT\r\nserver: uvicorn\r\n"

static const char STREAM_HEAD[] = "HTTP/1.1 200 OK\r\n" DATE
    "content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
static const char COMPLETION_BODY[] =
    "{\"id\":\"" ID "\",\"object\":\"chat.completion\"," COMMON "\"choices\":[{\"index\":0,"
    "\"message\":{\"role\":\"assistant\",\"content\":\"The quick brown fox jumps over the lazy dog, and then it does so "
    "again.\",\"refusal\":null,\"annotations\":null,\"audio\":null,\"function_call\":null,\"tool_calls\":[],"
    "\"reasoning_content\":null},\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":null,\"token_ids\":null}],"
    "\"service_tier\":null,\"system_fingerprint\":null,\"usage\":{\"prompt_tokens\":25,\"total_tokens\":89,"
    "\"completion_tokens\":64,\"prompt_tokens_details\":null},\"prompt_logprobs\":null,\"prompt_token_ids\":null,"
    "\"kv_transfer_params\":null}";
static const char FAILURE_BODY[] =
    "{\"error\":{\"message\":\"EngineCore encountered an issue.\",\"type\":\"InternalServerError\",\"param\":null,"
    "\"code\":500}}";

static long clock_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000L + t.tv_nsec / 1000000L;
}

/* -- what is answered ---------------------------------------------------------------------------------- */

static int sized(char *into, const char *status, const char *body)
{
    return sprintf(into, "HTTP/1.1 %s\r\n" DATE "content-length: %zu\r\ncontent-type: application/json\r\n\r\n%s",
                   status, strlen(body), body);
}

static void prepare_event(enum event_kind kind, const char *payload)
{
    event_length[kind] = sprintf(event[kind], "%zx\r\n%s\r\n%s", strlen(payload), payload,
                                 kind == DONE ? "0\r\n\r\n" : "");
}

static void prepare_delta(enum event_kind kind, const char *delta, const char *finish_reason)
{
    char payload[EVENT_BYTES_MAX - 32];
    sprintf(payload, CHUNK "\"choices\":[{\"index\":0,\"delta\":%s,\"logprobs\":null,\"finish_reason\":%s,"
            "\"token_ids\":null}]}\n\n", delta, finish_reason);
    prepare_event(kind, payload);
}

static void prepare_models(char **names, int count)
{
    char body[6144];
    int length = sprintf(body, "{\"object\":\"list\",\"data\":["), i;
    for (i = 0; i < count; i++)
        length += snprintf(body + length, 256,
                           "%s{\"id\":\"%.63s\",\"object\":\"model\",\"created\":1795800000,\"owned_by\":\"vllm\","
                           "\"parent\":null,\"max_model_len\":8192}", i ? "," : "", names[i]);
    sprintf(body + length, "]}");
    models_length = sized(models, "200 OK", body);
}

static void prepare(void)
{
    completion_length = sized(completion, "200 OK", COMPLETION_BODY);
    failure_length = sized(failure, "500 Internal Server Error", FAILURE_BODY);
    prepare_delta(ROLE, "{\"role\":\"assistant\",\"content\":\"\"}", "null");
    prepare_delta(CONTENT, "{\"content\":\" token\"}", "null");
    prepare_delta(FINISH, "{\"content\":\"\"}", "\"stop\"");
    prepare_event(USAGE, CHUNK "\"choices\":[],\"usage\":{\"prompt_tokens\":25,\"total_tokens\":89,"
                  "\"completion_tokens\":64}}\n\n");
    prepare_event(DONE, "data: [DONE]\n\n");
}

/* -- who is due when ----------------------------------------------------------------------------------- */

static void leave(connection *c)
{
    if (c->list == NO_LIST)
        return;
    c->before->after = c->after;
    c->after->before = c->before;
    paced -= c->list == WHEEL;
    c->list = NO_LIST;
}

static void enter(connection *head, connection *c, enum list list)
{
    c->after = head->after;
    c->before = head;
    head->after->before = c;
    head->after = c;
    c->list = list;
    paced += list == WHEEL;
}

static void schedule(connection *c, long due_ms)
{
    c->due_ms = due_ms <= wheel_ms ? wheel_ms + 1 : due_ms;
    enter(&wheel[c->due_ms % WHEEL_SLOTS], c, WHEEL);
}

static void drop(connection *c)
{
    leave(c);
    connections[c->fd] = NULL;
    close(c->fd);
    free(c->request);
    free(c->unsent);
    free(c);
}

/* -- writing ------------------------------------------------------------------------------------------- */

static void wait_for_room(connection *c, int on)
{
    struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP | (on ? EPOLLOUT : 0), .data.fd = c->fd};
    if (c->waits_for_room == on)
        return;
    c->waits_for_room = on;
    epoll_ctl(epoll, EPOLL_CTL_MOD, c->fd, &e);
}

/* returns: 0 written, 1 the rest waits for room, -1 the client has gone */
static int put(connection *c, const char *bytes, int length)
{
    int written = send(c->fd, bytes, length, MSG_NOSIGNAL);
    if (written == length)
        return 0;
    if (written < 0 && errno != EAGAIN)
        return -1;
    if (written < 0)
        written = 0;
    c->unsent_length = length - written;
    c->unsent_offset = 0;
    c->unsent = malloc(c->unsent_length);
    memcpy(c->unsent, bytes + written, c->unsent_length);
    wait_for_room(c, 1);
    return 1;
}

static void put_unsent(connection *c)
{
    int written = send(c->fd, c->unsent + c->unsent_offset, c->unsent_length - c->unsent_offset, MSG_NOSIGNAL);
    if (written < 0 && errno != EAGAIN) {
        drop(c);
        return;
    }
    if (written > 0)
        c->unsent_offset += written;
    if (c->unsent_offset < c->unsent_length)
        return;
    free(c->unsent);
    c->unsent = NULL;
    wait_for_room(c, 0);
    if (!c->streaming || c->list != NO_LIST)
        return;
    if (c->pace_ms)
        schedule(c, now_ms + 1);
    else
        enter(&fast, c, FAST);
}

static enum event_kind kind_of(const connection *c, int index)
{
    if (index == 0)
        return ROLE;
    return index <= c->tokens ? CONTENT : (enum event_kind)(FINISH + index - c->tokens - 1);
}

/* Writes what is due: one event, and the end of the stream behind the last token.
 * returns: 0 more to come, 1 waits for room, 2 the stream is out, -1 the client has gone, or is to be left */
static int pump(connection *c)
{
    char bytes[8192];
    int length = 0, result;
    enum event_kind kind;
    if (c->fault == CUT && c->next > c->tokens / 2)
        return -1;
    if (c->next == 0) {
        memcpy(bytes, STREAM_HEAD, sizeof STREAM_HEAD - 1);
        length = sizeof STREAM_HEAD - 1;
    }
    do {
        kind = kind_of(c, c->next++);
        if (kind == USAGE && !c->usage)
            continue;
        memcpy(bytes + length, event[kind], event_length[kind]);
        length += event_length[kind];
    } while (kind == FINISH || kind == USAGE);
    result = put(c, bytes, length);
    if (kind == DONE)
        c->streaming = 0;
    return result == 0 && kind == DONE ? 2 : result;
}

/* -- reading ------------------------------------------------------------------------------------------- */

static int is_true(const char *body, int length, const char *field)
{
    const char *at = memmem(body, length, field, strlen(field));
    if (!at)
        return 0;
    at += strlen(field);
    return !strncmp(at + strspn(at, " :"), "true", 4);
}

static void answer(connection *c)
{
    char *body = (char *)memmem(c->request, c->length, "\r\n\r\n", 4) + 4;
    int length = c->request + c->needed - body, get = c->request[0] == 'G', streamed;
    char *model = memmem(body, length, "\"model\"", 7);
    c->tokens = 64;
    c->pace_ms = 0;
    c->fault = NO_FAULT;
    if (model)
        sscanf(model + 7 + strspn(model + 7, " :\""), "m-%d-%d-%d", &c->tokens, &c->pace_ms, &c->fault);
    streamed = is_true(body, length, "\"stream\"");
    c->usage = memmem(body, length, "include_usage", 13) != NULL;
    memmove(c->request, c->request + c->needed, c->length - c->needed);
    c->length -= c->needed;
    c->needed = 0;
    if (get || !streamed || c->fault == STATUS_500) {
        int put_out = get                      ? put(c, models, models_length)
                      : c->fault == STATUS_500 ? put(c, failure, failure_length)
                                               : put(c, completion, completion_length);
        if (put_out < 0)
            drop(c);
        return;
    }
    c->streaming = 1;
    c->next = 0;
    if (c->pace_ms)
        schedule(c, now_ms + c->pace_ms);
    else
        enter(&fast, c, FAST);
}

/* The length of the request at the front; 0: its end is not known yet. */
static int request_length(connection *c)
{
    char *end = memmem(c->request, c->length, "\r\n\r\n", 4), *line;
    int body = 0;
    if (!end)
        return 0;
    for (line = c->request; line < end; line = (char *)memchr(line, '\n', end + 2 - line) + 1) {
        if (!strncasecmp(line, "content-length:", 15))
            body = atoi(line + 15);
        if (!strncasecmp(line, "transfer-encoding: chunked", 26))
            return memcmp(c->request + c->length - 5, "0\r\n\r\n", 5) ? 0 : c->length;
    }
    return end + 4 - c->request + body;
}

static void read_request(connection *c)
{
    for (;;) {
        int room, got;
        if (c->capacity - c->length < 4096) {
            c->capacity = c->capacity ? c->capacity * 2 : READ_BYTES;
            c->request = realloc(c->request, c->capacity + 1);
        }
        room = c->capacity - c->length;
        got = recv(c->fd, c->request + c->length, room, 0);
        if (got == 0 || (got < 0 && errno != EAGAIN)) {
            drop(c);
            return;
        }
        if (got < 0)
            break;
        c->length += got;
        if (got < room)
            break;
    }
    c->request[c->length] = 0;
    if (!c->needed)
        c->needed = request_length(c);
    if (c->needed && c->length >= c->needed)
        answer(c);
}

/* -- the loop ------------------------------------------------------------------------------------------ */

static int listen_somewhere(void)
{
    int one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (void *)&address, sizeof address) || listen(listener, 4096)
        || getsockname(listener, (void *)&address, &length)) {
        perror("backend");
        exit(1);
    }
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    return listener;
}

static void accept_all(int listener)
{
    int one = 1, fd;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP, .data.fd = fd};
        if (fd >= FDS_MAX) {
            close(fd);
            continue;
        }
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        connections[fd] = calloc(1, sizeof(connection));
        connections[fd]->fd = fd;
        epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &e);
    }
}

static void serve_fast(void)
{
    connection *c, *after;
    for (c = fast.after; c != &fast; c = after) {
        int result;
        after = c->after;
        result = pump(c);
        if (result < 0)
            drop(c);
        else if (result)
            leave(c);
    }
}

static void serve_due(void)
{
    while (wheel_ms < now_ms) {
        connection *head = &wheel[++wheel_ms % WHEEL_SLOTS], *c, *after;
        for (c = head->after; c != head; c = after) {
            int result;
            after = c->after;
            if (c->due_ms > wheel_ms)
                continue;
            leave(c);
            result = pump(c);
            if (result < 0)
                drop(c);
            else if (result == 0)
                schedule(c, c->due_ms + c->pace_ms);
        }
    }
}

int main(int argc, char **argv)
{
    struct epoll_event ready[512], e = {.events = EPOLLIN};
    int listener, count, i;
    signal(SIGPIPE, SIG_IGN);
    prepare();
    prepare_models(argv + 1, argc - 1 < MODELS_MAX ? argc - 1 : MODELS_MAX);
    fast.after = fast.before = &fast;
    for (i = 0; i < WHEEL_SLOTS; i++)
        wheel[i].after = wheel[i].before = &wheel[i];
    epoll = epoll_create1(0);
    listener = e.data.fd = listen_somewhere();
    epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &e);
    wheel_ms = now_ms = clock_ms();
    for (;;) {
        count = epoll_wait(epoll, ready, 512, fast.after != &fast ? 0 : paced ? 1 : 1000);
        now_ms = clock_ms();
        for (i = 0; i < count; i++) {
            int fd = ready[i].data.fd;
            if (fd == listener) {
                accept_all(listener);
                continue;
            }
            if (connections[fd] && (ready[i].events & EPOLLOUT) && connections[fd]->unsent)
                put_unsent(connections[fd]);
            if (connections[fd] && (ready[i].events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)))
                read_request(connections[fd]);
        }
        serve_fast();
        serve_due();
    }
}

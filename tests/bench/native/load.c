/* The load generator of the benchmark: one thread, epoll, HTTP/1.1 to 127.0.0.1, closed loop.
 *
 *     load -p PORT -b BODYFILE [-u PATH] [-c CONNECTIONS] [-n REQUESTS] [-d SECONDS] [-H "Name: value"]... [-K KEYSFILE]
 *
 * Each connection posts the body, reads the answer to its end, and posts again, until REQUESTS were sent
 * or SECONDS have passed; answers under way are then waited for (30 s at most). Prints one JSON object:
 *
 *     requests   answers that ended; sent: requests that were sent
 *     errors     answers that ended early, or with a status other than 200
 *     events     "data: " lines; done, usage: answers that held [DONE], or a usage object
 *     seconds    from the first request to the end; latency_*_us, ttft_*_us: whole answer, first body byte
 *
 * The first answer that is not a 200 goes to stderr. KEYSFILE: API keys, one a line, all of one length; the
 * connections take them in turn.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { HEAD_BYTES_MAX = 16384, READ_BYTES = 65536, SAMPLES_MAX = 1 << 22, TAIL_BYTES = 9, GRACE_S = 30,
       KEYS_MAX = 256 };
enum chunk_state { SIZE_LINE, DATA, DATA_END, TRAILER };

typedef struct {
    int fd, key, busy, in_head, status, chunked, has_body, done, usage;
    long length, left;                   /* of a sized body (-1: none given); of the body or chunk */
    enum chunk_state chunk;
    double sent_us, first_us;
    long events;
    char head[HEAD_BYTES_MAX];
    int head_length;
    char size_line[64];
    int size_line_length;
    char tail[TAIL_BYTES];               /* last body bytes, so that a marker cut in two is seen */
    int tail_length;
} connection;

static int port, connections = 1, epoll, request_length, keys = 1;
static long requests_max = 1L << 60, sent, ended, errors, events, dones, usages;
static double seconds_max = 10;
static char *path = "/v1/chat/completions", *requests[KEYS_MAX];
static float *latency, *ttft;
static long latencies, ttfts;

static double clock_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static int by_size(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static double percentile(const float *sorted, long count, double q)
{
    return count ? sorted[(long)((count - 1) * q)] : 0;
}

/* -- one request --------------------------------------------------------------------------------------- */

static void open_connection(connection *c)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = c};
    int one = 1;
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(c->fd, (void *)&address, sizeof address)) {
        perror("load: connect");
        exit(1);
    }
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    epoll_ctl(epoll, EPOLL_CTL_ADD, c->fd, &e);
}

static void send_request(connection *c, double now_us)
{
    c->busy = c->in_head = 1;
    c->head_length = c->size_line_length = c->tail_length = c->chunked = c->has_body = c->done = c->usage = 0;
    c->status = 0;
    c->events = 0;
    c->length = -1;
    c->chunk = SIZE_LINE;
    c->sent_us = now_us;
    sent++;
    if (send(c->fd, requests[c->key], request_length, MSG_NOSIGNAL) != request_length)
        errors++;
}

static void end_answer(connection *c, double now_us, int whole)
{
    c->busy = 0;
    ended++;
    errors += !whole || c->status != 200;
    events += c->events;
    dones += c->done;
    usages += c->usage;
    if (latencies < SAMPLES_MAX)
        latency[latencies++] = now_us - c->sent_us;
    if (c->has_body && ttfts < SAMPLES_MAX)
        ttft[ttfts++] = c->first_us - c->sent_us;
}

/* -- reading an answer --------------------------------------------------------------------------------- */

static void read_body(connection *c, const char *bytes, int length, double now_us)
{
    static char joined[TAIL_BYTES + READ_BYTES];
    int tail = c->tail_length, whole = tail + length;
    const char *at = joined;
    if (!c->has_body) {
        c->has_body = 1;
        c->first_us = now_us;
    }
    memcpy(joined, c->tail, tail);
    memcpy(joined + tail, bytes, length);
    while ((at = memmem(at, joined + whole - at, "data: ", 6))) {
        at += 6;
        c->events += at > joined + tail; /* else it was counted with the bytes before */
    }
    c->usage |= memmem(joined, whole, "\"usage\":{", 9) != NULL;
    c->done |= memmem(joined, whole, "[DONE]", 6) != NULL;
    c->tail_length = whole < TAIL_BYTES - 1 ? whole : TAIL_BYTES - 1;
    memcpy(c->tail, joined + whole - c->tail_length, c->tail_length);
}

/* returns: 1 when all chunks and the trailer were read */
static int read_chunks(connection *c, const char *bytes, int length, double now_us)
{
    while (length > 0) {
        int taken = 1;
        switch (c->chunk) {
        case SIZE_LINE:
            if (*bytes != '\n') {
                if (c->size_line_length < (int)sizeof c->size_line - 1)
                    c->size_line[c->size_line_length++] = *bytes;
                break;
            }
            c->size_line[c->size_line_length] = 0;
            c->size_line_length = 0;
            c->left = strtol(c->size_line, NULL, 16);
            c->chunk = c->left ? DATA : TRAILER;
            break;
        case DATA:
            taken = length < c->left ? length : c->left;
            read_body(c, bytes, taken, now_us);
            c->left -= taken;
            if (!c->left)
                c->chunk = DATA_END;
            break;
        case DATA_END:
            if (*bytes == '\n')
                c->chunk = SIZE_LINE;
            break;
        case TRAILER: /* nobody here sends one: the next line end is the end */
            if (*bytes == '\n')
                return 1;
            break;
        }
        bytes += taken;
        length -= taken;
    }
    return 0;
}

/* returns: bytes of the head among these, or -1 if it goes on */
static int read_head(connection *c, const char *bytes, int length)
{
    int before = c->head_length, taken = HEAD_BYTES_MAX - 1 - before;
    char *end, *line;
    if (taken > length)
        taken = length;
    memcpy(c->head + before, bytes, taken);
    c->head_length += taken;
    c->head[c->head_length] = 0;
    end = memmem(c->head, c->head_length, "\r\n\r\n", 4);
    if (!end)
        return -1;
    c->status = atoi(c->head + sizeof "HTTP/1.1 " - 1);
    for (line = c->head; line < end; line = (char *)memchr(line, '\n', end + 2 - line) + 1) {
        if (!strncasecmp(line, "content-length:", 15))
            c->length = atol(line + 15);
        if (!strncasecmp(line, "transfer-encoding:", 18))
            c->chunked = 1;
    }
    c->in_head = 0;
    c->left = c->length;
    return end + 4 - c->head - before;
}

/* returns: 1 when the answer has ended */
static int read_answer(connection *c, const char *bytes, int length, double now_us)
{
    if (c->in_head) {
        int taken = read_head(c, bytes, length);
        if (taken < 0)
            return 0;
        bytes += taken;
        length -= taken;
        if (c->status != 200 && errors == 0)
            fprintf(stderr, "load: %.*s\n%.*s\n", c->head_length > 2000 ? 2000 : c->head_length, c->head,
                    length > 2000 ? 2000 : length, bytes);
    }
    if (c->chunked)
        return read_chunks(c, bytes, length, now_us);
    if (length)
        read_body(c, bytes, length, now_us);
    c->left -= length;
    return c->length >= 0 && c->left <= 0;
}

/* -- the loop ------------------------------------------------------------------------------------------ */

static void on_readable(connection *c, double end_us)
{
    static char bytes[READ_BYTES];
    int got = recv(c->fd, bytes, sizeof bytes, 0);
    double now_us = clock_us();
    if (got < 0 && errno == EAGAIN)
        return;
    if (got <= 0) {
        if (c->busy) /* an answer with neither length nor chunks ends with its connection */
            end_answer(c, now_us, !c->in_head && !c->chunked && c->length < 0);
        close(c->fd);
        open_connection(c);
    } else if (!c->busy || !read_answer(c, bytes, got, now_us)) {
        return;
    } else {
        end_answer(c, now_us, 1);
    }
    if (!c->busy && sent < requests_max && now_us < end_us)
        send_request(c, now_us);
}

static void print_result(double started_us)
{
    double seconds = (clock_us() - started_us) / 1e6;
    qsort(latency, latencies, sizeof *latency, by_size);
    qsort(ttft, ttfts, sizeof *ttft, by_size);
    printf("{\"sent\":%ld,\"requests\":%ld,\"errors\":%ld,\"events\":%ld,\"done\":%ld,\"usage\":%ld,\"seconds\":%.4f,"
           "\"latency_p50_us\":%.1f,\"latency_p99_us\":%.1f,\"ttft_p50_us\":%.1f,\"ttft_p99_us\":%.1f}\n",
           sent, ended, errors + sent - ended, events, dones, usages, seconds, percentile(latency, latencies, .5),
           percentile(latency, latencies, .99), percentile(ttft, ttfts, .5), percentile(ttft, ttfts, .99));
}

static char *build_request(const char *body_file, const char *headers)
{
    char *request;
    FILE *file = fopen(body_file, "rb");
    long length;
    if (!file) {
        perror(body_file);
        exit(2);
    }
    fseek(file, 0, SEEK_END);
    length = ftell(file);
    rewind(file);
    request = malloc(length + HEAD_BYTES_MAX);
    request_length = sprintf(request, "POST %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nUser-Agent: load/1\r\nAccept: */*\r\n"
                             "Content-Type: application/json\r\n%sContent-Length: %ld\r\n\r\n",
                             path, port, headers, length);
    if (fread(request + request_length, 1, length, file) != (size_t)length)
        exit(2);
    fclose(file);
    request_length += length;
    return request;
}

/* One request for each key of the file, all of one length: connection i has the key i % keys. */
static void build_requests(const char *body_file, const char *headers, const char *keys_file)
{
    char with_key[9216], key[512];
    FILE *file = keys_file ? fopen(keys_file, "r") : NULL;
    if (!keys_file) {
        requests[0] = build_request(body_file, headers);
        return;
    }
    if (!file) {
        perror(keys_file);
        exit(2);
    }
    for (keys = 0; keys < KEYS_MAX && fscanf(file, "%511s", key) == 1; keys++) {
        snprintf(with_key, sizeof with_key, "%sAuthorization: Bearer %s\r\n", headers, key);
        requests[keys] = build_request(body_file, with_key);
    }
    fclose(file);
    if (!keys)
        exit(2);
}

int main(int argc, char **argv)
{
    char headers[8192] = "", *body_file = NULL, *keys_file = NULL;
    struct epoll_event ready[512];
    connection *all;
    double started_us, end_us;
    int option, i;
    while ((option = getopt(argc, argv, "p:u:c:n:d:b:H:K:")) > 0)
        switch (option) {
        case 'p': port = atoi(optarg); break;
        case 'u': path = optarg; break;
        case 'c': connections = atoi(optarg); break;
        case 'n': requests_max = atol(optarg); break;
        case 'd': seconds_max = atof(optarg); break;
        case 'b': body_file = optarg; break;
        case 'H': strcat(strcat(headers, optarg), "\r\n"); break;
        case 'K': keys_file = optarg; break;
        default: return 2;
        }
    if (!port || !body_file)
        return 2;
    signal(SIGPIPE, SIG_IGN);
    build_requests(body_file, headers, keys_file);
    latency = malloc(SAMPLES_MAX * sizeof *latency);
    ttft = malloc(SAMPLES_MAX * sizeof *ttft);
    epoll = epoll_create1(0);
    all = calloc(connections, sizeof *all);
    for (i = 0; i < connections; i++) {
        all[i].key = i % keys;
        open_connection(&all[i]);
    }
    started_us = clock_us();
    end_us = started_us + seconds_max * 1e6;
    for (i = 0; i < connections && sent < requests_max; i++)
        send_request(&all[i], clock_us());
    for (;;) {
        double now_us = clock_us();
        int count;
        if (ended >= requests_max || (now_us >= end_us && (ended >= sent || now_us >= end_us + GRACE_S * 1e6)))
            break;
        count = epoll_wait(epoll, ready, 512, 100);
        for (i = 0; i < count; i++)
            on_readable(ready[i].data.ptr, end_us);
    }
    print_result(started_us);
    return 0;
}

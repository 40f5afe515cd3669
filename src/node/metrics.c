/*
 * The page of /metrics, in the text format of Prometheus, from one table: name, kind, where in the
 * snapshot, what it says. docs/operations.md has the same list; a test compares the two.
 *
 * Families that are split by a label add up exactly to their totals, since all numbers of a page
 * are of one moment: gets = hits by tier + misses by reason; puts ended = results.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/bits.h"
#include "base/reason.h"
#include "base/result.h"
#include "node/node_private.h"

enum kind {
    COUNTER,
    GAUGE
};

struct metric {
    const char *name;
    const char *labels; /* "" or {...} */
    enum kind kind;
    size_t offset;    /* of a uint64_t in the snapshot */
    const char *help; /* NULL: one more series of the metric before */
};

#define M(name, labels, kind, field, help)                                            \
    {                                                                                 \
        "forebay_" name, labels, kind, offsetof(struct fb_node_snapshot, field), help \
    }

static const struct metric metrics[] = {
    M("gets_total", "", COUNTER, shard.gets, "gets that ended, or are under way"),
    M("get_hits_total", "{tier=\"dram\"}", COUNTER, shard.get_hits_dram,
      "gets that gave bytes: all from memory, or a part of them from SSD"),
    M("get_hits_total", "{tier=\"ssd\"}", COUNTER, shard.get_hits_ssd, NULL),
    M("get_bytes_total", "", COUNTER, shard.get_bytes, "bytes of values that gets gave"),
    M("lookup_keys_total", "", COUNTER, shard.lookups, "keys that lookups asked for"),
    M("lookup_hits_total", "", COUNTER, shard.lookup_hits, "of those: readable"),
    M("puts_total", "", COUNTER, shard.puts, "puts that were asked for"),
    M("put_bytes_total", "", COUNTER, shard.put_bytes, "bytes of values that were stored"),
    M("put_waited_key_total", "", COUNTER, shard.put_waited_key,
      "puts that met an unfinished put of the same key"),
    M("put_waited_space_total", "", COUNTER, shard.put_waited_space,
      "puts that did not get space at once"),
    M("removes_total", "", COUNTER, shard.removes, "removes"),
    M("epoch_bumps_total", "", COUNTER, shard.epoch_bumps, "epochs that were bumped"),
    M("grants_expired_total", "", COUNTER, shard.grants_expired,
      "grants that ended because their writer made no progress"),
    M("quarantined_total", "", COUNTER, shard.quarantined,
      "grants whose memory had to wait for their writer"),
    M("late_commits_total", "", COUNTER, shard.late_commits,
      "commits that came after their grant had ended; none was stored"),
    M("checksum_failures_total", "", COUNTER, shard.checksum_failures,
      "parts whose bytes were not those of their root"),
    M("announced_total", "", COUNTER, shard.notices_announced, "keys announced"),
    M("withdrawn_total", "", COUNTER, shard.notices_withdrawn, "keys withdrawn"),

    M("pool_bytes", "", GAUGE, shard.pool_bytes, "the pool"),
    M("pool_faulted_bytes", "", GAUGE, faulted_bytes,
      "of the pool: backed by memory, so that it can be granted"),
    M("pool_huge_bytes", "", GAUGE, huge_bytes, "of that: in huge pages"),
    M("pool_free_bytes", "", GAUGE, shard.free_bytes, "of the pool: free"),
    M("pool_clean_bytes", "", GAUGE, shard.clean_bytes,
      "of the pool: values that can be dropped at once"),
    M("pool_dirty_bytes", "", GAUGE, shard.dirty_bytes,
      "of the pool: values that are not on SSD yet"),
    M("pool_reserved_bytes", "", GAUGE, shard.reserved_bytes,
      "of the pool: granted to puts that have not committed"),
    M("pool_quarantine_bytes", "", GAUGE, shard.quarantine_bytes,
      "of the pool: waits until its writer is known to have left it"),
    M("pool_pinned_bytes", "", GAUGE, shard.pinned_bytes, "of the pool: being read by clients"),
    M("pool_staging_bytes", "", GAUGE, shard.staging_bytes, "of the pool: on the way from SSD"),
    M("pool_leased_bytes", "", GAUGE, shard.leased_bytes, "of the pool: kept by leases and holds"),
    M("dirty_limit_bytes", "", GAUGE, shard.dirty_limit_bytes, "how much may be dirty"),
    M("index_entries", "", GAUGE, shard.entries, "entries of the index in use"),
    M("index_entries_max", "", GAUGE, shard.entries_max, "entries of the index"),
    M("keys", "", GAUGE, shard.keys, "keys known"),
    M("keys_dram", "", GAUGE, shard.keys_dram, "keys with a copy in memory"),
    M("keys_ssd", "", GAUGE, shard.keys_ssd, "keys with a copy on SSD"),
    M("waiting_puts", "", GAUGE, shard.waiting_puts, "puts that wait for space"),
    M("open_operations", "", GAUGE, shard.open_ops, "operations under way"),
    M("namespaces", "", GAUGE, shard.namespaces, "namespaces"),
    M("device_write_bytes_per_second", "", GAUGE, shard.device_write_bytes_per_s,
      "what the device is measured to write"),

    M("log_written_bytes_total", "", COUNTER, log.bytes_written,
      "bytes written to the SSD log, all in"),
    M("log_data_written_bytes_total", "", COUNTER, log.data_bytes_written,
      "of those: bytes of values"),
    M("log_read_bytes_total", "", COUNTER, log.bytes_read, "bytes read from the SSD log"),
    M("log_flushes_total", "", COUNTER, log.flushes, "flushes"),
    M("log_batches_total", "", COUNTER, log.batches, "batches written"),
    M("log_items_durable_total", "", COUNTER, log.items_durable,
      "parts and tombstones made durable"),
    M("log_items_failed_total", "", COUNTER, log.items_failed,
      "parts and tombstones that could not be made durable"),
    M("log_flush_failed_items_total", "", COUNTER, log.flush_failed_items,
      "of those: by a flush that failed"),
    M("log_reads_total", "", COUNTER, log.reads, "reads of parts"),
    M("log_read_errors_total", "", COUNTER, log.read_errors, "reads that failed"),
    M("log_short_reads_total", "", COUNTER, log.short_reads, "reads that came short"),
    M("log_write_errors_total", "", COUNTER, log.write_errors, "writes that failed"),
    M("log_flush_errors_total", "", COUNTER, log.flush_errors, "flushes that failed"),
    M("log_no_space_total", "", COUNTER, log.no_space,
      "writes or growths refused for want of space"),
    M("log_stale_incarnation_total", "", COUNTER, log.stale_incarnation,
      "records met of a segment's earlier life"),
    M("log_torn_tail_total", "", COUNTER, log.torn_tail,
      "ends of segments that a crash left unfinished"),
    M("log_rot_total", "", COUNTER, log.rot_descriptors,
      "descriptors that were durable and are damaged"),
    M("log_segments_sealed_total", "", COUNTER, log.segments_sealed, "segments filled"),
    M("log_segments_reclaimed_total", "", COUNTER, log.segments_reclaimed,
      "segments given up to make room"),
    M("log_segments_retired_total", "", COUNTER, log.segments_retired,
      "segments closed after an error"),
    M("log_segments_lost_total", "", COUNTER, log.segments_lost,
      "segments that could not be read at start"),
    M("log_reclaims_given_up_total", "", COUNTER, log.reclaims_given_up,
      "reclaims that ended without a free segment"),
    M("log_records_dropped_total", "", COUNTER, log.records_dropped,
      "live records given up with their segment"),
    M("log_records_copied_total", "", COUNTER, log.records_copied, "live records copied forward"),
    M("log_tombs_written_total", "", COUNTER, log.tombs_written, "tombstones written"),
    M("log_tombs_dropped_total", "", COUNTER, log.tombs_dropped,
      "tombstones that nothing needs any more"),
    M("log_tombs", "", GAUGE, log.tombs_now, "tombstones"),
    M("log_segments_free", "", GAUGE, log.segments_free_now, "segments free"),
    M("log_live_bytes", "", GAUGE, log.live_bytes_now, "bytes of live records"),
    M("log_used_bytes", "", GAUGE, log.used_bytes_now, "bytes of segments in use"),
    M("log_file_bytes", "", GAUGE, log.file_bytes_now, "length of the file"),
    M("log_reads_in_flight_max", "", GAUGE, log.reads_in_flight_max,
      "the most reads there were at once"),
    M("log_recovered_records", "", GAUGE, log.recovered_records, "records found at start"),
    M("log_history_since_milliseconds", "", GAUGE, log.history_since_ms,
      "wall clock before which what was given up may be forgotten; 0: nothing is"),
    M("log_recovery_read_bytes", "", GAUGE, log.recovery_bytes_read, "bytes read for that"),

    M("io_read_bytes_total", "", COUNTER, io.read_bytes, "bytes read from the device"),
    M("io_read_direct_bytes_total", "", COUNTER, io.read_bytes_direct, "of those: by O_DIRECT"),
    M("io_write_bytes_total", "", COUNTER, io.write_bytes, "bytes written to the device"),
    M("io_write_direct_bytes_total", "", COUNTER, io.write_bytes_direct, "of those: by O_DIRECT"),
    M("io_requests_total", "{op=\"read\"}", COUNTER, io.done[FB_IO_READ], "requests carried out"),
    M("io_requests_total", "{op=\"write\"}", COUNTER, io.done[FB_IO_WRITE], NULL),
    M("io_requests_total", "{op=\"flush\"}", COUNTER, io.done[FB_IO_FLUSH], NULL),
    M("io_requests_total", "{op=\"hash\"}", COUNTER, io.done[FB_IO_HASH], NULL),
    M("io_requests_total", "{op=\"grow\"}", COUNTER, io.done[FB_IO_GROW], NULL),
    M("io_failed_total", "{op=\"read\"}", COUNTER, io.failed[FB_IO_READ], "requests that failed"),
    M("io_failed_total", "{op=\"write\"}", COUNTER, io.failed[FB_IO_WRITE], NULL),
    M("io_failed_total", "{op=\"flush\"}", COUNTER, io.failed[FB_IO_FLUSH], NULL),
    M("io_failed_total", "{op=\"hash\"}", COUNTER, io.failed[FB_IO_HASH], NULL),
    M("io_failed_total", "{op=\"grow\"}", COUNTER, io.failed[FB_IO_GROW], NULL),
    M("io_short_total", "", COUNTER, io.shorts, "reads and writes that moved less than asked"),

    M("connections", "", GAUGE, node.connections, "connections"),
    M("sessions_leaving", "", GAUGE, node.zombies,
      "sessions whose connection ended and whose memory or operations have not"),
    M("connections_accepted_total", "", COUNTER, node.accepted, "connections taken"),
    M("connections_refused_total", "", COUNTER, node.refused, "connections turned away"),
    M("connections_closed_total", "", COUNTER, node.closed, "connections ended"),
    M("connections_cut_total", "{why=\"hello\"}", COUNTER, node.cut_hello,
      "connections cut for a deadline of theirs"),
    M("connections_cut_total", "{why=\"frame\"}", COUNTER, node.cut_frame, NULL),
    M("connections_cut_total", "{why=\"output\"}", COUNTER, node.cut_output, NULL),
    M("connections_cut_total", "{why=\"chunk\"}", COUNTER, node.cut_chunk, NULL),
    M("connections_errors_total", "", COUNTER, node.errors, "connections ended by an ERROR"),
    M("big_frames", "", GAUGE, node.big_frames, "frames above 32 KiB that are being collected"),
    M("protocol_breaches_total", "", COUNTER, proto.breaches,
      "connections that broke the protocol"),
    M("frames_in_total", "", COUNTER, proto.frames_in, "frames taken"),
    M("frames_out_total", "", COUNTER, proto.frames_out, "frames sent"),
    M("stream_in_bytes_total", "", COUNTER, proto.value_bytes_in,
      "bytes of values that came over sockets"),
    M("stream_out_bytes_total", "", COUNTER, proto.value_bytes_out,
      "bytes of values that went over sockets"),
    M("inline_puts_total", "{taken=\"yes\"}", COUNTER, proto.inline_taken,
      "puts with inline bytes: stored at once, or granted later"),
    M("inline_puts_total", "{taken=\"no\"}", COUNTER, proto.inline_declined, NULL),
    M("leaf_mismatches_total", "", COUNTER, proto.leaf_mismatches,
      "puts whose bytes were not those of their leaves; none was stored"),
    M("misreads_total", "", COUNTER, proto.misreads,
      "parts that a reader found bad and that are good here"),
    M("releases_wanted_total", "", COUNTER, proto.releases_wanted,
      "puts that ended before their writer had committed"),
    M("cancels_total", "", COUNTER, proto.cancels, "operations that clients gave up"),
    M("late_frames_total", "", COUNTER, proto.late_frames, "frames for operations that had ended"),
    M("gets_queued_total", "", COUNTER, proto.gets_queued, "gets that waited for a window"),
    M("log_lines_suppressed_total", "", COUNTER, log_lines_suppressed,
      "log lines over the rate limit"),
    M("turns_total", "", COUNTER, node.turns, "turns of the data thread"),
    M("turn_max_nanoseconds", "", GAUGE, node.turn_max_ns, "the longest turn"),
    M("memory_plan_bytes", "", GAUGE, memory_plan_bytes, "what the node will take at most"),
};

/* ---- text ---- */

void fb_node_print(struct fb_node_text *text, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int count = vsnprintf(text->at + text->used, text->room - text->used, format, args);
    va_end(args);
    if (count >= 0 && (size_t)count < text->room - text->used) {
        text->used += (size_t)count;
        return;
    }
    text->is_cut = true;
    text->at[text->used] = '\0';
}

void fb_node_print_json(struct fb_node_text *text, const char *string)
{
    fb_node_print(text, "\"");
    for (const char *at = string; *at != '\0'; at++) {
        unsigned char c = (unsigned char)*at;
        if (c == '"' || c == '\\')
            fb_node_print(text, "\\%c", c);
        else if (c < 0x20 || c >= 0x7f)
            fb_node_print(text, "\\u%04x", c); /* bytes of a path, one by one */
        else
            fb_node_print(text, "%c", c);
    }
    fb_node_print(text, "\"");
}

/* ---- the page ---- */

static void head(struct fb_node_text *text, const char *name, enum kind kind, const char *help)
{
    fb_node_print(text, "# HELP %s %s\n# TYPE %s %s\n", name, help, name,
                  kind == COUNTER ? "counter" : "gauge");
}

static void by_reason(struct fb_node_text *text, const char *name, const char *help,
                      const uint64_t *counts)
{
    head(text, name, COUNTER, help);
    for (int i = 0; i < FB_REASON_COUNT; i++)
        fb_node_print(text, "%s{reason=\"%s\"} %" PRIu64 "\n", name, fb_reason_name(i), counts[i]);
}

static void by_result(struct fb_node_text *text, const uint64_t *counts)
{
    static const char name[] = "forebay_put_results_total";
    head(text, name, COUNTER, "puts that ended, by result");
    for (int i = 0; i < FB_RESULT_COUNT; i++)
        fb_node_print(text, "%s{result=\"%s\"} %" PRIu64 "\n", name,
                      fb_result_name(fb_result_at(i)), counts[i]);
}

static void state(struct fb_node_text *text, const struct fb_node_snapshot *snapshot)
{
    static const char name[] = "forebay_tier_state";
    head(text, name, GAUGE, "state of the SSD tier: 1 for the one that it is in");
    for (int i = FB_TIER_OFF; i <= FB_TIER_FENCED; i++)
        fb_node_print(text, "%s{state=\"%s\"} %d\n", name, fb_node_tier_name(i),
                      snapshot->tier == (enum fb_tier_state)i);
}

static void seconds(struct fb_node_text *text, const char *name, const char *help, uint64_t ns)
{
    head(text, name, GAUGE, help);
    fb_node_print(text, "%s %" PRIu64 ".%09" PRIu64 "\n", name, ns / FB_SEC_NS, ns % FB_SEC_NS);
}

void fb_node_metrics(const struct fb_node_snapshot *snapshot, const struct fb_node_facts *facts,
                     uint64_t turn_age_ns, struct fb_node_text *text)
{
    head(text, "forebay_info", GAUGE, "what runs here");
    fb_node_print(text,
                  "forebay_info{node=\"%" PRIu64
                  "\",io=\"%s\",direct=\"%s\",huge_pages=\"%s\"} 1\n",
                  facts->node_id, facts->io_name, facts->is_direct ? "yes" : "no",
                  facts->huge_pages ? "yes" : "no");
    for (unsigned i = 0; i < FB_ARRAY_COUNT(metrics); i++) {
        const struct metric *metric = &metrics[i];
        uint64_t value;
        memcpy(&value, (const uint8_t *)snapshot + metric->offset, sizeof(value));
        if (metric->help != NULL)
            head(text, metric->name, metric->kind, metric->help);
        fb_node_print(text, "%s%s %" PRIu64 "\n", metric->name, metric->labels, value);
    }
    head(text, "forebay_get_hits_direct_total", COUNTER,
         "gets that gave bytes read from SSD by O_DIRECT");
    fb_node_print(text, "forebay_get_hits_direct_total %" PRIu64 "\n",
                  facts->is_direct ? snapshot->shard.get_hits_ssd : 0);
    head(text, "forebay_io_reads_in_flight", GAUGE, "reads that the device has now");
    fb_node_print(text, "forebay_io_reads_in_flight %u\n", snapshot->io.reads_in_flight);
    head(text, "forebay_io_read_depth_max", GAUGE, "the most reads that the device had at once");
    fb_node_print(text, "forebay_io_read_depth_max %u\n", snapshot->io.read_depth_max);
    head(text, "forebay_value_bytes_max", GAUGE, "the largest value that can be put");
    fb_node_print(text, "forebay_value_bytes_max %" PRIu64 "\n", facts->value_bytes_max);
    by_reason(text, "forebay_get_misses_total", "gets that gave no bytes, by reason",
              snapshot->shard.get_misses);
    by_reason(text, "forebay_lookup_misses_total",
              "keys of lookups that were not readable, by reason", snapshot->shard.lookup_misses);
    by_reason(text, "forebay_drops_total", "values dropped, by reason", snapshot->shard.drops);
    by_result(text, snapshot->shard.put_results);
    state(text, snapshot);
    seconds(text, "forebay_turn_age_seconds", "since the data thread's last turn", turn_age_ns);
    seconds(text, "forebay_uptime_seconds", "since the start",
            snapshot->taken_ns - snapshot->started_ns);
}

// Package wal owns Raft's log, term and vote as files: a directory of segments, one write and one fdatasync for an append.
//
// hashicorp/raft-wal decides which segments there are; the files are this package's own. raft-wal's own segments open a damaged log without
// an error: a flipped bit before the last batch is read back as the entry, and one in the last batch removes it
// (TestStockSegmentsPassDamageOver). The speed is not the reason. Side by side on one busy machine (medians of nine runs,
// fsync on ext4, load average 8 to 18, raft-wal with its verifier), the median append took
//
//	entries   300 B: own    stock     4 KiB: own    stock
//	1               704 µs  310 µs          301 µs  608 µs
//	16              418 µs  435 µs          780 µs  1019 µs
//	64             1629 µs  1029 µs        3838 µs  3847 µs
//
// and reading one of the newest entries 4.7 µs and 8.1 µs (BenchmarkStock). The differences are within the noise of that machine for small
// entries and in favour of the own segments for large ones.
package wal

package kubeletapi

import (
	"bytes"
	"errors"
	"fmt"
	"time"
)

// Streams of a CRI log line.
const (
	stdoutStream = "stdout"
	stderrStream = "stderr"
)

// outputTime is how timestamps are shown: RFC 3339 with all nine digits.
const outputTime = "2006-01-02T15:04:05.000000000Z07:00"

var errLogFormat = errors.New("not a CRI log line")

// entry is one line of a CRI log file. Its text refers to the line it was parsed from.
//
//	2016-10-06T00:17:09.669794202Z stdout P the first part of a long line,
//	2016-10-06T00:17:09.669794203Z stdout F and its end
type entry struct {
	time    time.Time
	stream  string
	partial bool   // the line goes on in the next entry of this stream
	text    []byte // with the newline, unless partial
}

// parseEntry parses one line, with or without its newline.
func parseEntry(line []byte) (entry, error) {
	stamp, rest, ok := bytes.Cut(line, []byte{' '})
	if !ok {
		return entry{}, fmt.Errorf("%w: timestamp is not found", errLogFormat)
	}
	at, err := time.Parse(time.RFC3339Nano, string(stamp))
	if err != nil {
		return entry{}, fmt.Errorf("%w: unexpected timestamp", errLogFormat)
	}
	stream, rest, ok := bytes.Cut(rest, []byte{' '})
	if !ok {
		return entry{}, fmt.Errorf("%w: stream type is not found", errLogFormat)
	}
	e := entry{time: at}
	switch string(stream) {
	case stdoutStream:
		e.stream = stdoutStream
	case stderrStream:
		e.stream = stderrStream
	default:
		return entry{}, fmt.Errorf("%w: unexpected stream type", errLogFormat)
	}
	tags, text, ok := bytes.Cut(rest, []byte{' '})
	if !ok {
		return entry{}, fmt.Errorf("%w: log tag is not found", errLogFormat)
	}
	tag, _, _ := bytes.Cut(tags, []byte{':'}) // more tags may follow in later versions of the format
	e.partial = string(tag) == "P"
	if e.partial {
		text = bytes.TrimSuffix(text, []byte{'\n'})
	}
	e.text = text
	return e, nil
}

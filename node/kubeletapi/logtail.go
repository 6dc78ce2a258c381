package kubeletapi

import (
	"bytes"
	"io"
)

const (
	tailBlock = 32 << 10
	// tagSearch is how much of the beginning of a line may be needed to see its tag: a timestamp with nine digits
	// and an offset, the stream and the tags.
	tagSearch = 128
)

// tailOffset returns where the last n lines of a CRI log of size bytes begin. Parts of one long line count as one.
func tailOffset(f io.ReaderAt, size int64, n int64) (int64, error) {
	if n < 0 {
		return 0, nil
	}
	if n == 0 {
		return size, nil
	}
	var lines int64 // begun so far, from the end of the file
	for end := size; end > 0; {
		start, err := lineStart(f, end)
		if err != nil {
			return 0, err
		}
		ends, err := endsLine(f, start, end)
		if err != nil {
			return 0, err
		}
		if ends || end == size { // the last part in the file counts as the end of a line until more is written
			if lines == n {
				return end, nil
			}
			lines++
		}
		end = start
	}
	return 0, nil
}

// lineStart returns where the physical line begins that ends before end.
func lineStart(f io.ReaderAt, end int64) (int64, error) {
	buf := make([]byte, tailBlock)
	at := end - 1 // the newline that ends it, or its last byte
	for at > 0 {
		from := max(0, at-tailBlock)
		part := buf[:at-from]
		if _, err := f.ReadAt(part, from); err != nil && err != io.EOF {
			return 0, err
		}
		if i := bytes.LastIndexByte(part, '\n'); i >= 0 {
			return from + int64(i) + 1, nil
		}
		at = from
	}
	return 0, nil
}

// endsLine tells whether the physical line from start to end is the last part of a line.
func endsLine(f io.ReaderAt, start, end int64) (bool, error) {
	head := make([]byte, min(tagSearch, end-start))
	if _, err := f.ReadAt(head, start); err != nil && err != io.EOF {
		return false, err
	}
	e, err := parseEntry(head)
	return err != nil || !e.partial, nil
}

package containerlogs

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"strings"
)

const (
	maxLines = 80
	maxBytes = 2048
)

// Tail returns the end of a container's log, without the time stamps and marks that the runtime writes: at most
// maxLines lines and maxBytes bytes of the last 256 KiB. A log that cannot be read is empty.
func Tail(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	const most = 256 << 10
	if st, err := f.Stat(); err == nil && st.Size() > most {
		_, _ = f.Seek(-most, io.SeekEnd)
	}
	var lines []string
	sc := bufio.NewScanner(f)
	sc.Buffer(make([]byte, 64<<10), 1<<20)
	partial := false
	for sc.Scan() {
		parts := bytes.SplitN(sc.Bytes(), []byte(" "), 4)
		if len(parts) < 4 {
			continue
		}
		if partial && len(lines) > 0 {
			lines[len(lines)-1] += string(parts[3])
		} else {
			lines = append(lines, string(parts[3]))
		}
		partial = string(parts[2]) == "P"
	}
	if len(lines) > maxLines {
		lines = lines[len(lines)-maxLines:]
	}
	text := strings.Join(lines, "\n")
	if text != "" && !partial { // what ends without a newline is marked as going on
		text += "\n"
	}
	if len(text) > maxBytes {
		text = text[len(text)-maxBytes:]
	}
	return text
}

package volume

import (
	"fmt"
	"strings"
)

// envFileValue finds key in the text of an environment file: lines KEY='value', where the value may span lines,
// blank lines and comments. It returns "" when the key is not there. The format is that of fileKeyRef (KEP-3721).
func envFileValue(text, key string) (string, error) {
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		at := i + 1
		line := strings.TrimLeft(strings.TrimSuffix(lines[i], "\r"), " \t")
		if line == "" || line[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		switch {
		case !ok:
			return "", fmt.Errorf("line %d: missing '='", at)
		case name == "":
			return "", fmt.Errorf("line %d: empty variable name", at)
		case strings.TrimRight(name, " \t") != name:
			return "", fmt.Errorf("line %d: whitespace before '=' is not allowed", at)
		case strings.TrimLeft(value, " \t") != value:
			if name == key {
				return "", nil
			}
			continue
		case !strings.HasPrefix(value, "'"):
			return "", fmt.Errorf("line %d: value must be enclosed in single quotes", at)
		}
		value = value[1:]
		for !strings.Contains(value, "'") {
			if i++; i >= len(lines) {
				return "", fmt.Errorf("line %d: unclosed single quote", at)
			}
			value += "\n" + strings.TrimSuffix(lines[i], "\r")
		}
		value, rest, _ := strings.Cut(value, "'")
		if rest = strings.TrimLeft(rest, " \t"); rest != "" && rest[0] != '#' {
			return "", fmt.Errorf("line %d: unexpected content after closing quote", at)
		}
		if name == key {
			return value, nil
		}
	}
	return "", nil
}

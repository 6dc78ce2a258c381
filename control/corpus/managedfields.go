package corpus

import (
	"bytes"
	"slices"
	"strings"
)

// Managers of fields are listed by the time of their last change in whole seconds, and within a second by name. So their order
// depends on the speed of the server. Sorting them removes this difference.

// sortManagers sorts the managers in JSON or YAML text and changes nothing else.
func sortManagers(text []byte) []byte {
	out := sortManagersJSON(text)
	if bytes.Contains(out, []byte("managedFields:\n")) {
		out = sortManagersYAML(out)
	}
	return out
}

func sortManagersJSON(text []byte) []byte {
	mark := []byte(`"managedFields"`)
	var out []byte
	for {
		at := bytes.Index(text, mark)
		if at < 0 {
			return append(out, text...)
		}
		open := at + len(mark)
		for open < len(text) && bytes.IndexByte([]byte(": \n"), text[open]) >= 0 {
			open++
		}
		if open == len(text) || text[open] != '[' {
			out, text = append(out, text[:open]...), text[open:]
			continue
		}
		commas, end := elements(text[open:])
		if end == 0 {
			return append(out, text...)
		}
		out = append(out, text[:open+1]...)
		out = append(out, sortElements(text[open+1:open+end], commas)...)
		text = text[open+end:]
	}
}

// elements returns the offsets of the commas of a list and of its closing bracket, from its opening bracket.
func elements(list []byte) (commas []int, end int) {
	depth, inside := 0, false
	for i := 0; i < len(list); i++ {
		switch c := list[i]; {
		case inside && c == '\\':
			i++
		case c == '"':
			inside = !inside
		case inside:
		case c == '[' || c == '{':
			depth++
		case c == ']' || c == '}':
			if depth--; depth == 0 {
				return commas, i
			}
		case c == ',' && depth == 1:
			commas = append(commas, i)
		}
	}
	return nil, 0
}

func sortElements(inside []byte, commas []int) []byte {
	gap := inside[:len(inside)-len(bytes.TrimLeft(inside, " \n"))]
	tail := inside[len(bytes.TrimRight(inside, " \n")):]
	var list []string
	from := 0
	for _, c := range append(commas, len(inside)+1) {
		list = append(list, strings.TrimSpace(string(inside[from:c-1])))
		from = c
	}
	slices.Sort(list)
	return []byte(string(gap) + strings.Join(list, ","+string(gap)) + string(tail))
}

func sortManagersYAML(text []byte) []byte {
	lines := strings.SplitAfter(string(text), "\n")
	for i := 0; i < len(lines); i++ {
		name := strings.TrimLeft(lines[i], " ")
		if name != "managedFields:\n" {
			continue
		}
		indent := lines[i][:len(lines[i])-len(name)]
		end := i + 1
		var list []string
		for ; end < len(lines); end++ {
			first := strings.HasPrefix(lines[end], indent+"- ")
			if !first && (len(list) == 0 || !strings.HasPrefix(lines[end], indent+"  ")) {
				break
			}
			if first {
				list = append(list, "")
			}
			list[len(list)-1] += lines[end]
		}
		slices.Sort(list)
		lines = slices.Replace(lines, i+1, end, strings.Join(list, ""))
	}
	return []byte(strings.Join(lines, ""))
}

package volume

import "strings"

// Expand replaces references $(NAME) in s by what lookup returns for NAME. $$ stands for one $, so $$(NAME) is kept as
// the text $(NAME); a reference that lookup does not know, and one that is not closed, stay as they are. These are the
// rules for env values, command and args of a container.
func Expand(s string, lookup func(name string) (value string, ok bool)) string {
	if !strings.Contains(s, "$") {
		return s
	}
	var out strings.Builder
	for {
		i := strings.IndexByte(s, '$')
		if i < 0 || i == len(s)-1 {
			out.WriteString(s)
			return out.String()
		}
		out.WriteString(s[:i])
		s = s[i+1:]
		switch s[0] {
		case '$':
			out.WriteByte('$')
			s = s[1:]
		case '(':
			end := strings.IndexByte(s, ')')
			if end < 0 {
				out.WriteString("$(")
				s = s[1:]
				continue
			}
			name := s[1:end]
			if v, ok := lookup(name); ok {
				out.WriteString(v)
			} else {
				out.WriteString("$(" + name + ")")
			}
			s = s[end+1:]
		default:
			out.WriteByte('$')
		}
	}
}

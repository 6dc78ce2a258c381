package history

import (
	"fmt"
	"strings"
)

// String returns the operation for reports and pictures.
func (o *Op) String() string {
	var out strings.Builder
	for i, c := range o.Compares {
		if i > 0 {
			out.WriteString(", ")
		}
		if c.ByValue {
			fmt.Fprintf(&out, "if %s==%s", c.Key, c.Value)
		} else {
			fmt.Fprintf(&out, "if %s@%d", c.Key, c.Mod)
		}
	}
	for _, w := range o.Writes {
		if w.Delete {
			fmt.Fprintf(&out, " del %s", w.Key)
		} else {
			fmt.Fprintf(&out, " put %s=%s", w.Key, w.Value)
		}
	}
	if r := o.Read; r != nil {
		what := " get "
		if r.Prefix {
			what = " list "
		}
		if r.Serializable {
			what = " serializable" + what
		}
		out.WriteString(what + r.Key)
		if r.At != 0 {
			fmt.Fprintf(&out, " at %d", r.At)
		}
	}
	if !o.known() {
		fmt.Fprintf(&out, " → ? (%s)", o.Fault)
		return strings.TrimSpace(out.String())
	}
	fmt.Fprintf(&out, " → %d", o.Revision)
	if len(o.Compares) > 0 {
		fmt.Fprintf(&out, " %v", o.Succeeded)
	}
	if o.Read != nil {
		out.WriteString(" " + showAll(o.KVs))
	}
	return strings.TrimSpace(out.String())
}

func showAll(kvs []KV) string {
	parts := make([]string, len(kvs))
	for i, kv := range kvs {
		parts[i] = fmt.Sprintf("%s=%s@%d", kv.Key, kv.Value, kv.Mod)
	}
	return "[" + strings.Join(parts, " ") + "]"
}

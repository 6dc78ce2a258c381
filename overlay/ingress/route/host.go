package route

import (
	"net"
	"strings"
)

// Wildcard says what the star of a host pattern stands for.
type Wildcard bool

const (
	// OneLabel is the meaning in Ingress: *.example.com matches a.example.com but not b.a.example.com.
	OneLabel Wildcard = false
	// ManyLabels is the meaning in the Gateway API: *.example.com matches both.
	ManyLabels Wildcard = true
)

// exactHost is more specific than any wildcard: no DNS name is as long.
const exactHost = 1 << 16

// HostMap maps host patterns to values, and finds the most specific pattern first. The zero value is empty and uses
// OneLabel.
type HostMap[T any] struct {
	Wildcard Wildcard
	exact    map[string]T
	suffixes map[string]T // by the pattern without its star, such as ".example.com"
	other    *T
}

// Get returns the value of exactly this pattern.
func (m *HostMap[T]) Get(pattern string) (value T, ok bool) {
	switch {
	case pattern == "" || pattern == "*":
		if m.other != nil {
			return *m.other, true
		}
		return value, false
	case strings.HasPrefix(pattern, "*."):
		value, ok = m.suffixes[strings.ToLower(pattern[1:])]
	default:
		value, ok = m.exact[strings.ToLower(pattern)]
	}
	return value, ok
}

// Set sets the value of a pattern: a name, *.name, or "" (also "*") for any host. A later value replaces an earlier one.
func (m *HostMap[T]) Set(pattern string, value T) {
	switch {
	case pattern == "" || pattern == "*":
		m.other = &value
	case strings.HasPrefix(pattern, "*."):
		if m.suffixes == nil {
			m.suffixes = map[string]T{}
		}
		m.suffixes[strings.ToLower(pattern[1:])] = value
	default:
		if m.exact == nil {
			m.exact = map[string]T{}
		}
		m.exact[strings.ToLower(pattern)] = value
	}
}

// Len returns the number of patterns.
func (m *HostMap[T]) Len() int {
	n := len(m.exact) + len(m.suffixes)
	if m.other != nil {
		n++
	}
	return n
}

// Find calls fn with the values whose pattern matches a normalized host, the most specific first, until fn returns true.
// specific is larger for a more specific pattern, and 0 for any host. Find reports whether fn returned true.
func (m *HostMap[T]) Find(host string, fn func(value T, specific int) bool) bool {
	if v, ok := m.exact[host]; ok && host != "" && fn(v, exactHost) {
		return true
	}
	if len(m.suffixes) > 0 {
		rest := host
		for {
			i := strings.IndexByte(rest, '.')
			if i < 0 {
				break
			}
			if i > 0 || len(rest) < len(host) { // the star must stand for at least one label
				if v, ok := m.suffixes[rest[i:]]; ok && fn(v, len(rest)-i) {
					return true
				}
			}
			if m.Wildcard == OneLabel {
				break
			}
			rest = rest[i+1:]
		}
	}
	return m.other != nil && fn(*m.other, 0)
}

// NormalizeHost returns the host name of a Host header or :authority in lower case, without port, final dot and brackets of
// IPv6 literals.
func NormalizeHost(hostport string) string {
	host := hostport
	if strings.IndexByte(hostport, ':') >= 0 {
		if h, _, err := net.SplitHostPort(hostport); err == nil {
			host = h
		}
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// Intersect returns the pattern for the hosts that match both patterns, with the Gateway API's meaning of wildcards; ok is
// false if there are none. "" is any host.
func Intersect(a, b string) (pattern string, ok bool) {
	a, b = strings.ToLower(a), strings.ToLower(b)
	switch {
	case a == "" || a == b:
		return b, true
	case b == "":
		return a, true
	case strings.HasPrefix(a, "*.") && strings.HasSuffix(b, a[1:]):
		return b, true // also when b is a wildcard below a
	case strings.HasPrefix(b, "*.") && strings.HasSuffix(a, b[1:]):
		return a, true
	}
	return "", false
}

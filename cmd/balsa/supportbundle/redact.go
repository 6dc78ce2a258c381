package supportbundle

import (
	"bytes"
	"encoding/base64"
	"regexp"
	"slices"
	"strings"
)

// redacted stands for what is left out.
const redacted = "REDACTED"

// shortestSecret is how long a value must be, in bytes, to be looked for everywhere: shorter ones are words such as "true".
const shortestSecret = 6

var (
	// secretName is a name of something whose value is a secret. Names of references, such as secretName, are not.
	secretName = regexp.MustCompile(`(?i)(passw(or)?d|passphrase|secret|token|credentials?|private[-_]?key|api[-_]?key|access[-_]?key|auth)$`)
	// secretText is a secret by its form: a JSON web token, a join token, a bearer token, a PEM key, a password in a URL.
	secretText = regexp.MustCompile(`eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+|balsa1\.[sa]\.[0-9a-f]+\.[0-9a-f]+\.[0-9a-f]+|(?i:bearer\s+)[A-Za-z0-9._~+/=-]{8,}|-----BEGIN [A-Z ]*PRIVATE KEY-----[^-]*-----END [A-Z ]*PRIVATE KEY-----|://[^/\s:@"]*:[^/\s@"]+@`)
	// secretArgument is an argument of a command that carries a secret, such as --password=x.
	secretArgument = regexp.MustCompile(`(?i)^(-{0,2}[a-z0-9_.-]*(?:passw|secret|token|credential|key|auth)[a-z0-9_.-]*[=:]).+`)
)

// text returns data without what is a secret by its form.
func text(data []byte) []byte { return secretText.ReplaceAll(data, []byte(redacted)) }

// builtIn reports whether the fields of a group's objects are known here. Objects of other groups keep their metadata only:
// anything may be in their fields.
func builtIn(group string) bool {
	return !strings.Contains(group, ".") || strings.HasSuffix(group, ".k8s.io") && group != "externalsecrets.k8s.io"
}

// object removes from an object what may be secret: values of variables, data of ConfigMaps, arguments with secrets in them,
// fields named after a secret. It changes o.
func object(group, resource string, o map[string]any) {
	if metadata, ok := o["metadata"].(map[string]any); ok {
		delete(metadata, "managedFields")
		if annotations, ok := metadata["annotations"].(map[string]any); ok {
			for name := range annotations {
				if !strings.Contains(name, "kubernetes.io/") && !strings.Contains(name, "balsa.dev/") || name == "kubectl.kubernetes.io/last-applied-configuration" {
					annotations[name] = redacted
				}
			}
		}
	}
	if !builtIn(group) {
		for field := range o {
			if !slices.Contains([]string{"apiVersion", "kind", "metadata"}, field) {
				delete(o, field)
			}
		}
		return
	}
	if group == "" && (resource == "configmaps" || resource == "secrets") {
		for _, field := range []string{"data", "binaryData", "stringData"} {
			if values, ok := o[field].(map[string]any); ok {
				for name := range values {
					values[name] = redacted
				}
			}
		}
	}
	walk("", o)
}

// walk removes secrets from the value of a field, in place, and returns what stands for it.
func walk(field string, v any) any {
	switch v := v.(type) {
	case map[string]any:
		if _, named := v["name"].(string); named && (field == "env" || field == "httpHeaders") {
			if _, ok := v["value"]; ok {
				v["value"] = redacted
			}
		}
		for name, value := range v {
			v[name] = walk(name, value)
		}
	case []any:
		next := false // the argument before names a secret, as in "--password x"
		for i, value := range v {
			argument, isText := value.(string)
			switch {
			case isText && (field == "args" || field == "command"):
				if next {
					v[i] = redacted
				} else {
					v[i] = secretArgument.ReplaceAllString(argument, "${1}"+redacted)
				}
				next = secretName.MatchString(argument) && strings.HasPrefix(argument, "-")
			default:
				v[i] = walk(field, value)
			}
		}
	case string:
		if secretName.MatchString(field) && v != "" {
			return redacted
		}
	}
	return v
}

// scrubber replaces known secret values wherever they are.
type scrubber struct{ replace *strings.Replacer }

// newScrubber makes a scrubber of the values of Secrets: each, each of its lines, and how both look in base64 and in JSON.
func newScrubber(values [][]byte) scrubber {
	seen := map[string]bool{}
	var pairs []string
	add := func(s string) {
		if len(s) >= shortestSecret && !seen[s] {
			seen[s] = true
			pairs = append(pairs, s, redacted)
		}
	}
	for _, v := range values {
		add(string(v))
		add(base64.StdEncoding.EncodeToString(v))
		for line := range bytes.Lines(v) {
			add(string(bytes.TrimSpace(line)))
		}
	}
	return scrubber{strings.NewReplacer(pairs...)}
}

// clean returns data without any secret that is known by its value or its form.
func (s scrubber) clean(data []byte) []byte {
	return text([]byte(s.replace.Replace(string(data))))
}

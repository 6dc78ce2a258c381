package storage

import (
	"bytes"
	"encoding/json"
)

// versionOffset returns the offset in an object's JSON at which metadata.resourceVersion has to be inserted: before the
// first field of metadata that sorts after it. ok is false if no such field exists, if metadata has a resourceVersion
// already, or if the text is not as encoding/json writes maps (sorted, without space). labels, if not nil, is called
// with each label of the object.
func versionOffset(text []byte, labels func(key, value []byte)) (at int, ok bool) {
	if len(text) == 0 || text[0] != '{' {
		return 0, false
	}
	for i := 1; ; i++ {
		key, value, valid := member(text, i)
		if !valid {
			return 0, false
		}
		if string(key) == "metadata" {
			return versionOffsetIn(text, value, labels)
		}
		if i = skip(text, value); i < 0 || text[i] != ',' {
			return 0, false
		}
	}
}

// versionOffsetIn is versionOffset for the metadata object that begins at i.
func versionOffsetIn(text []byte, i int, labels func(key, value []byte)) (at int, ok bool) {
	if text[i] != '{' {
		return 0, false
	}
	for i++; ; i++ {
		key, value, valid := member(text, i)
		if !valid || string(key) == "resourceVersion" {
			return 0, false
		}
		if string(key) > "resourceVersion" {
			return i, true
		}
		if labels != nil && string(key) == "labels" {
			if !pairs(text, value, labels) {
				return 0, false
			}
		}
		if i = skip(text, value); i < 0 || text[i] != ',' {
			return 0, false
		}
	}
}

// member reads the field name at i, which must have no escapes, and returns the offset of its value.
func member(text []byte, i int) (key []byte, value int, ok bool) {
	end := skipString(text, i)
	if end < 0 || end+1 >= len(text) || text[end] != ':' {
		return nil, 0, false
	}
	return text[i+1 : end-1], end + 1, true
}

// pairs calls see with each field of the object at i. All values have to be strings.
func pairs(text []byte, i int, see func(key, value []byte)) bool {
	if text[i] != '{' {
		return false
	}
	if i++; i < len(text) && text[i] == '}' {
		return true
	}
	for ; ; i++ {
		key, value, ok := member(text, i)
		if !ok {
			return false
		}
		end := skipString(text, value)
		if end < 0 || end >= len(text) {
			return false
		}
		k, keyOK := unquoted(key, text[i:i+len(key)+2])
		v, valueOK := unquoted(text[value+1:end-1], text[value:end])
		if !keyOK || !valueOK {
			return false
		}
		see(k, v)
		if text[end] == '}' {
			return true
		}
		if i = end; text[i] != ',' {
			return false
		}
	}
}

// unquoted decodes a JSON string: quoted is its text, inner the text between the quotes.
func unquoted(inner, quoted []byte) ([]byte, bool) {
	if bytes.IndexByte(inner, '\\') < 0 {
		return inner, true
	}
	var s string
	if err := json.Unmarshal(quoted, &s); err != nil {
		return nil, false
	}
	return []byte(s), true
}

// skipString returns the offset after the string at i, -1 if there is none.
func skipString(text []byte, i int) int {
	if i >= len(text) || text[i] != '"' {
		return -1
	}
	for i++; i < len(text); {
		n := bytes.IndexByte(text[i:], '"')
		if n < 0 {
			return -1
		}
		escape := bytes.IndexByte(text[i:i+n], '\\')
		if escape < 0 {
			return i + n + 1
		}
		i += escape + 2
	}
	return -1
}

// skip returns the offset after the value at i, which lies inside text; -1 if the value has no end there.
func skip(text []byte, i int) int {
	for depth := 0; i < len(text); {
		switch text[i] {
		case '"':
			if i = skipString(text, i); i < 0 {
				return -1
			}
		case '{', '[':
			depth++
			i++
			continue
		case '}', ']':
			depth--
			i++
		case ',', ':':
			i++
			continue
		default: // a number or a word
			for i < len(text) && text[i] != ',' && text[i] != '}' && text[i] != ']' && text[i] != '"' {
				i++
			}
		}
		if depth <= 0 {
			if depth < 0 || i >= len(text) {
				return -1
			}
			return i
		}
	}
	return -1
}

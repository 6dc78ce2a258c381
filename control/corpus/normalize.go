package corpus

import (
	"bytes"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Texts that differ between any two servers.
var (
	uids     = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	versions = regexp.MustCompile(`(resourceVersion[\\"]*[:=] ?[\\"]*|in record \(|in object meta: )[0-9]+`)
	resumes  = regexp.MustCompile(`(continue(?:=|"?: ?"?))[A-Za-z0-9_-]{20,}`)
	moments  = regexp.MustCompile(`[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?Z`)
	ages     = regexp.MustCompile(`"(<invalid>|[0-9]+(ms|s|m[0-9]*s?))"`)
	yamlAges = regexp.MustCompile(`(?m)^( +- )[0-9]+(ms|s|m[0-9]*s?)$`)
	managers = regexp.MustCompile(`(manager[\\"]*: ?[\\"]*)(kube-apiserver|balsa)\b`)
	currents = regexp.MustCompile(`(current: )[0-9]+`)
	jwts     = regexp.MustCompile(`eyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+`)
)

// recentWindow is how far from now a time may be to count as set by the server. The recorded objects contain only older times.
const recentWindow = 48 * time.Hour

func isRecent(t time.Time) bool { return time.Since(t).Abs() < recentWindow }

// Normalize replaces what differs between two servers in the text of an answer: UIDs, versions of objects, times close to now,
// tokens, the server's name as a manager of fields, and in tables the age of new objects.
func Normalize(text []byte) []byte {
	text = uids.ReplaceAll(text, []byte("UID"))
	text = versions.ReplaceAll(text, []byte("${1}RV"))
	text = resumes.ReplaceAll(text, []byte("${1}CONTINUE"))
	text = managers.ReplaceAll(text, []byte("${1}SERVER"))
	text = currents.ReplaceAll(text, []byte("${1}RV"))
	text = jwts.ReplaceAll(text, []byte("TOKEN"))
	text = moments.ReplaceAllFunc(text, func(m []byte) []byte {
		if t, err := time.Parse(time.RFC3339Nano, string(m)); err == nil && isRecent(t) {
			return []byte("NOW")
		}
		return m
	})
	if bytes.Contains(text, []byte(`"columnDefinitions"`)) {
		text = ages.ReplaceAll(text, []byte(`"AGE"`))
	}
	if bytes.Contains(text, []byte("\ncolumnDefinitions:")) || bytes.HasPrefix(text, []byte("apiVersion: meta.k8s.io")) {
		text = yamlAges.ReplaceAll(text, []byte("${1}AGE"))
	}
	return sortManagers(text)
}

var (
	momentType = reflect.TypeFor[metav1.Time]()
	microType  = reflect.TypeFor[metav1.MicroTime]()
	fixedTime  = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
)

// normalizeObject does for a decoded object, given as a pointer, what Normalize does for text.
func normalizeObject(obj any) { normalizeValue(reflect.ValueOf(obj).Elem(), "") }

func normalizeValue(v reflect.Value, field string) {
	switch v.Type() {
	case momentType:
		if t := v.Interface().(metav1.Time); isRecent(t.Time) {
			v.Set(reflect.ValueOf(metav1.NewTime(fixedTime)))
		}
		return
	case microType:
		if t := v.Interface().(metav1.MicroTime); isRecent(t.Time) {
			v.Set(reflect.ValueOf(metav1.NewMicroTime(fixedTime)))
		}
		return
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.Kind() == reflect.Pointer && !v.IsNil() {
			normalizeValue(v.Elem(), field)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				normalizeValue(v.Field(i), v.Type().Field(i).Name)
			}
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return
		}
		for i := range v.Len() {
			normalizeValue(v.Index(i), field)
		}
		if managers, ok := v.Interface().([]metav1.ManagedFieldsEntry); ok {
			slices.SortFunc(managers, func(a, b metav1.ManagedFieldsEntry) int { return strings.Compare(a.String(), b.String()) })
		}
	case reflect.String:
		normalizeString(v, field)
	}
}

func normalizeString(v reflect.Value, field string) {
	s := uids.ReplaceAllString(v.String(), "UID")
	if field == "ResourceVersion" && s != "" && strings.Trim(s, "0123456789") == "" {
		s = "RV"
	}
	if field == "Manager" && (s == "kube-apiserver" || s == "balsa") {
		s = "SERVER"
	}
	if field == "Continue" && s != "" {
		s = "CONTINUE"
	}
	v.SetString(s)
}

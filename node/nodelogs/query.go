package nodelogs

import (
	"fmt"
	"net/url"
	"regexp"
	"regexp/syntax"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	maxTailLines     = 100000
	maxServices      = 4
	maxServiceLength = 256
)

// unsafeInService is what journalctl might take for something else than a name.
var unsafeInService = regexp.MustCompile(`[^a-zA-Z\-_.:0-9@]`)

// query is what a client asks for besides a path.
type query struct {
	services []string
	file     string // one file of the log directory
	options
}

// options narrow down the log of a service.
type options struct {
	since, until *time.Time
	tail, boot   *int
	pattern      string
}

// parseQuery reads the parameters of a request; nil means that it has none of a query's. The error names every fault.
func parseQuery(v url.Values) (*query, error) {
	var q query
	var errs field.ErrorList
	invalid := func(name string, value any, why string) {
		errs = append(errs, field.Invalid(field.NewPath(name), value, why))
	}
	moment := func(name string) *time.Time {
		text := v.Get(name)
		if text == "" {
			return nil
		}
		t, err := time.Parse(time.RFC3339, text)
		if err != nil {
			invalid(name, text, "invalid time format")
		}
		return &t
	}
	number := func(name string, least, most int) *int {
		text := v.Get(name)
		if text == "" {
			return nil
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < least || n > most {
			invalid(name, text, fmt.Sprintf("must be a number from %d to %d", least, most))
		}
		return &n
	}
	q.since, q.until = moment("sinceTime"), moment("untilTime")
	q.tail, q.boot = number("tailLines", 0, maxTailLines), number("boot", -maxTailLines, 0)
	q.pattern = v.Get("pattern")
	if _, err := syntax.Parse(q.pattern, syntax.Perl); err != nil {
		invalid("pattern", q.pattern, err.Error())
	}
	if q.since != nil && q.until != nil && q.since.After(*q.until) {
		invalid("untilTime", v.Get("untilTime"), "must be after `sinceTime`")
	}
	errs = append(errs, q.take(v)...)
	if len(errs) > 0 {
		return nil, errs.ToAggregate()
	}
	if len(q.services) == 0 && q.file == "" {
		return nil, nil
	}
	return &q, nil
}

// take reads which services or which file are asked for. A slash tells a file from a service.
func (q *query) take(v url.Values) field.ErrorList {
	path := field.NewPath("query")
	asked, given := v["query"]
	var files []string
	for _, name := range asked {
		if strings.ContainsAny(name, `/\`) {
			files = append(files, name)
		} else if strings.TrimSpace(name) != "" {
			q.services = append(q.services, name)
		}
	}
	switch {
	case !given && q.options != (options{}):
		return field.ErrorList{field.Required(path, "cannot be empty with options")}
	case given && len(files)+len(q.services) == 0:
		return field.ErrorList{field.Invalid(path, asked, "may not be empty")}
	case len(files) > 0 && len(q.services) > 0:
		return field.ErrorList{field.Invalid(path, asked, "cannot specify a file and service")}
	case len(files) > 1:
		return field.ErrorList{field.Invalid(path, files, "cannot specify more than one file")}
	case len(files) == 1 && q.options != (options{}):
		return field.ErrorList{field.Invalid(path, files, "cannot specify file with options")}
	case len(files) == 1:
		q.file = strings.ReplaceAll(files[0], `\`, "/")
	}
	return validateServices(path, q.services)
}

func validateServices(path *field.Path, services []string) (errs field.ErrorList) {
	if len(services) > maxServices {
		errs = append(errs, field.TooMany(path, len(services), maxServices))
	}
	for _, s := range services {
		switch {
		case len(s) > maxServiceLength:
			errs = append(errs, field.TooLong(path, "", maxServiceLength))
		case unsafeInService.MatchString(s) || s[0] == '-':
			errs = append(errs, field.Invalid(path, s, "input contains unsupported characters"))
		}
	}
	return errs
}

// journalTime is how journalctl reads a time, in UTC.
const journalTime = "2006-01-02 15:04:05 UTC"

// journalArgs are journalctl's arguments for the services' logs.
func (q *query) journalArgs(services []string) []string {
	args := []string{"--utc", "--no-pager", "--output=short-precise"}
	if q.since != nil {
		args = append(args, "--since="+q.since.UTC().Format(journalTime))
	}
	if q.until != nil {
		args = append(args, "--until="+q.until.UTC().Format(journalTime))
	}
	if q.tail != nil {
		args = append(args, "--pager-end", fmt.Sprintf("--lines=%d", *q.tail))
	}
	for _, s := range services {
		args = append(args, "--unit="+s)
	}
	if q.pattern != "" {
		args = append(args, "--grep="+q.pattern)
	}
	if q.boot != nil {
		args = append(args, "--boot", strconv.Itoa(*q.boot))
	}
	return args
}

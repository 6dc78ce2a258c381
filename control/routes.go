package control

import (
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/emicklei/go-restful/v3"
)

// router finds the route of a request as restful.CurlyRouter does, which looks at all routes of a web service, several
// hundred, and copies them. This one looks only at those with the request's method and number of segments, and leaves to
// the other whatever more than one route, a route with a pattern or an unusual media type may be meant for.
type router struct {
	curly    restful.CurlyRouter
	services sync.Map // *restful.WebService → *routes
}

// routes are the routes of one web service.
type routes struct {
	count    int // when this was made: routes are added while a server is assembled
	plain    map[shape][]route
	patterns map[string][]route // with segments that match more than one; by method
}

// shape is what is compared first.
type shape struct {
	method   string
	segments int
}

// route is a route with its path taken apart; "" is a parameter.
type route struct {
	*restful.Route
	segments []string
}

// SelectRoute implements restful.RouteSelector.
func (r *router) SelectRoute(services []*restful.WebService, req *http.Request) (*restful.WebService, *restful.Route, error) {
	if service, found := r.find(services, req); found != nil {
		return service, found, nil
	}
	return r.curly.SelectRoute(services, req)
}

// find returns the one route of a request, nil when it takes more to tell.
func (r *router) find(services []*restful.WebService, req *http.Request) (*restful.WebService, *restful.Route) {
	path := req.URL.Path
	if len(path) < 2 || path[0] != '/' || path[len(path)-1] == '/' || strings.Contains(path, "//") {
		return nil, nil
	}
	var service *restful.WebService
	for _, s := range services {
		root := s.RootPath()
		if strings.ContainsRune(root, '{') {
			return nil, nil
		}
		if beneath(path, root) && (service == nil || len(root) > len(service.RootPath())) {
			service = s
		}
	}
	if service == nil || len(service.RootPath()) < 2 {
		return nil, nil
	}
	known := r.routesOf(service)
	for _, p := range known.patterns[req.Method] {
		if p.matches(path) {
			return nil, nil
		}
	}
	var found *restful.Route
	for _, candidate := range known.plain[shape{req.Method, strings.Count(path, "/")}] {
		if !candidate.matches(path) {
			continue
		}
		if found != nil {
			return nil, nil
		}
		found = candidate.Route
	}
	if found == nil || !takes(found, req) {
		return nil, nil
	}
	return service, found
}

// beneath reports whether path is root or below it.
func beneath(path, root string) bool {
	return strings.HasPrefix(path, root) && (len(path) == len(root) || path[len(root)] == '/')
}

// routesOf returns a web service's routes in order, which are looked at anew when there are more.
func (r *router) routesOf(service *restful.WebService) *routes {
	all := service.Routes()
	if known, ok := r.services.Load(service); ok && known.(*routes).count == len(all) {
		return known.(*routes)
	}
	made := &routes{count: len(all), plain: map[shape][]route{}, patterns: map[string][]route{}}
	for i := range all {
		one := route{Route: &all[i], segments: strings.Split(strings.Trim(all[i].Path, "/"), "/")}
		pattern := len(all[i].If) > 0
		for n, segment := range one.segments {
			if !strings.HasPrefix(segment, "{") {
				pattern = pattern || strings.ContainsAny(segment, "{}:")
				continue
			}
			if one.segments[n] = ""; strings.ContainsRune(segment, ':') {
				pattern = true
				one.segments = one.segments[:n] // what comes after is not compared
				break
			}
		}
		if pattern {
			made.patterns[one.Method] = append(made.patterns[one.Method], one)
			continue
		}
		key := shape{one.Method, len(one.segments)}
		made.plain[key] = append(made.plain[key], one)
	}
	r.services.Store(service, made)
	return made
}

// matches compares a path segment by segment. One that is longer matches.
func (o route) matches(path string) bool {
	rest := path[1:]
	for i, segment := range o.segments {
		head, after, more := strings.Cut(rest, "/")
		if segment != "" && segment != head || !more && i < len(o.segments)-1 {
			return false
		}
		rest = after
	}
	return true
}

// takes reports whether a route certainly takes a request's media types.
func takes(r *restful.Route, req *http.Request) bool {
	accept := req.Header.Values("Accept")
	if len(accept) > 1 || len(accept) == 1 && accept[0] != "*/*" && !slices.Contains(r.Produces, accept[0]) {
		return false
	}
	if len(r.Produces) == 0 {
		return false
	}
	if len(r.Consumes) == 0 || slices.Contains(r.Consumes, "*/*") {
		return true
	}
	content := req.Header.Values("Content-Type")
	return len(content) == 1 && slices.Contains(r.Consumes, content[0])
}

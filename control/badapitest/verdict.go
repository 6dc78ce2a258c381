package badapitest

import "regexp"

// upstreamToo are 5xx answers that upstream gives as well, with the reason why they are right.
var upstreamToo = []struct {
	code    int
	message *regexp.Regexp
	why     string
}{
	{503, regexp.MustCompile(`error trying to reach service|no endpoints available for service|has no address yet`), "the server behind the request does not answer"},
	{504, regexp.MustCompile(`did not complete within|context deadline exceeded|Too large resource version`), "the request's own time has run out"},
	{500, regexp.MustCompile(`failed to create typed patch object`), "an apply of what the schema does not know; the field manager's errors have no code"},
	{500, regexp.MustCompile(`unknown patch type: `), "a strategic merge patch with a $patch that is none; the patch library's errors have no code"},
	{500, regexp.MustCompile(`content is not a list`), "one custom resource asked for as a list's metadata"},
	{500, regexp.MustCompile(`failed calling webhook|conversion webhook for|error dialing backend`), "the server behind the request does not answer"},
}

// Verdict returns the fault of an answer, "" if there is none.
func Verdict(code int, body []byte) string {
	if code < 500 {
		return ""
	}
	text := string(body[:min(len(body), 4000)])
	if s := status(body); s.Message != "" {
		text = s.Message
	}
	for _, u := range upstreamToo {
		if u.code == code && u.message.MatchString(text) {
			return ""
		}
	}
	return text
}

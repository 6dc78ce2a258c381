// Package policytest owns what tests of network policies share: worlds of namespaces, pods and policies, made by throwing
// dice, and an oracle that says what the policies of such a world allow. The oracle reads the API's objects as their
// documentation has it, flow by flow, and shares no code with what it judges.
package policytest

// Command hostile is an agent that was taken over: it runs on an agent's machine as root, with the certificates, the keys
// and the files of that agent, and tries to harm what is not its own node: other nodes, their pods and secrets, the
// servers, the API. Each attack has a control, the same call by whom it is for, which must work: otherwise the attack
// proves nothing.
//
// It knows the product from outside alone. Whatever could do harm goes as a dry run where the API has one.
package main

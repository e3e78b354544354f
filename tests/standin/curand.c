/* The stand-in's cuRAND: the provider links to it and calls nothing of it for deterministic models. */
int curandStandIn;
